"use strict";
// The page works without this file: tables, notes, ratios and captions are plain HTML. It adds charts, sorting, files.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("charts");
  const views = new Map();
  const tables = [...document.querySelectorAll("table")];
  const form = document.getElementById("filters");

  // Charts -------------------------------------------------------------------------------------------------------

  document.documentElement.classList.add("js");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function fitSpec(spec, width) {
    const fitted = structuredClone(spec);
    const labels = { labelColor: colour("--text"), titleColor: colour("--soft") };
    fitted.background = null;
    fitted.padding = 4;
    // The page has headings and captions of its own.
    delete fitted.title;
    fitted.config = {
      ...spec.config,
      aria: false,
      axis: { ...spec.config.axis, ...labels, gridColor: colour("--grid"), domainColor: colour("--line"),
        tickColor: colour("--line") },
      legend: { labelColor: colour("--text"), titleColor: colour("--soft"), labelLimit: width * 0.8 },
      header: { labelColor: colour("--text"), titleColor: colour("--soft") },
      text: { fill: colour("--soft") },
    };
    adapt(fitted, width);
    if (fitted.spec) {
      fitted.spec.width = Math.max(width - 70, 160);
    } else {
      fitted.width = width;
      fitted.autosize = { type: "fit-x", contains: "padding" };
    }
    return fitted;
  }

  // Colours of the picture on white paper become the page's. On a phone, labels of rows take at most two fifths.
  function adapt(node, width) {
    if (!node || typeof node !== "object") return;
    const phone = width < 560;
    for (const [key, value] of Object.entries(node)) {
      if (key === "datasets" || key === "values") continue;
      if (value === "#6b7280" && key === "color") node[key] = colour("--soft");
      else if (value === "#1f2937" && key === "color") node[key] = colour("--text");
      else if (phone && key === "labelLimit") node[key] = Math.min(value, Math.round(width * 0.4));
      else if (phone && key === "columns") node[key] = 2;
      else if (phone && key === "tickCount" && value > 5) node[key] = 5;
      else adapt(value, width);
    }
  }

  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, logLevel: 1,
    tooltip: { disableDefaultStyle: true, theme: "custom" } };

  async function draw(place) {
    const name = place.dataset.chart;
    const width = Math.min(place.clientWidth, 1200);
    if (!width || place.dataset.width === String(width)) return;
    place.dataset.width = String(width);
    try {
      const result = await vegaEmbed(place, fitSpec(specs[name], width), options);
      views.get(name)?.finalize();
      views.set(name, result.view);
      place.classList.add("drawn");
      // The place has a name and its table a caption; a reader would drown in the names of all marks.
      place.querySelector("svg").setAttribute("aria-hidden", "true");
      await hide(result.view);
    } catch (error) {
      place.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(name, error);
    }
  }

  const places = [...document.querySelectorAll("[data-chart]")];

  function drawAll() {
    return Promise.all(places.map(draw));
  }

  function redraw() {
    for (const place of places) if (views.has(place.dataset.chart)) { delete place.dataset.width; draw(place); }
  }

  if (typeof vegaEmbed === "function") {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
    }, { rootMargin: "400px" });
    places.forEach((place) => seen.observe(place));
    const idle = window.requestIdleCallback ?? ((f) => setTimeout(f, 200));
    // One after the other while nothing else happens: a page that is printed or searched has all of them.
    const next = (rest) => { if (rest.length) idle(() => draw(rest[0]).then(() => next(rest.slice(1)))); };
    window.addEventListener("load", () => next(places));
    window.addEventListener("beforeprint", drawAll);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    let waiting = 0;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 200); });
  } else {
    for (const place of places) place.textContent = "Charts need the extra: pip install \"enginebench[report]\"";
  }

  // Sorting ------------------------------------------------------------------------------------------------------

  function sortBy(table, head) {
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (line) => {
      const cell = line.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value) : (cell.textContent || null);
    };
    const isNumber = head.classList.contains("number");
    const lines = [...body.rows].map((line) => [key(line), line]);
    const empty = ([value]) => value === null || (isNumber && typeof value !== "number");
    lines.sort((a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b);
      const order = isNumber ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]), "en", { numeric: true });
      return up ? order : -order;
    });
    body.append(...lines.map(([, line]) => line));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }

  for (const table of tables) for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button")?.addEventListener("click", () => sortBy(table, head));
  }

  // Filters ------------------------------------------------------------------------------------------------------

  const lines = tables.flatMap((table) => [...table.tBodies[0].rows]).filter((line) => "label" in line.dataset);

  function listHidden() {
    const groups = new Map();
    for (const box of form?.querySelectorAll("input") ?? []) {
      if (!groups.has(box.name)) groups.set(box.name, new Set());
      if (box.checked) groups.get(box.name).add(box.value);
    }
    return lines.filter((line) => [...groups].some(([name, chosen]) => !chosen.has(line.dataset[name])));
  }

  // Charts of one row alone, such as its layers, have no such signal.
  async function hide(view) {
    if ("hidden" in view.getState().signals) {
      await view.signal("hidden", listHidden().map((line) => line.dataset.label)).runAsync();
    }
  }

  function filter() {
    const hidden = new Set(listHidden());
    for (const line of lines) line.hidden = hidden.has(line);
    const all = new Set(lines.map((line) => line.dataset.label));
    const gone = new Set([...hidden].map((line) => line.dataset.label));
    document.getElementById("count").textContent =
      gone.size ? `${all.size - gone.size} of ${all.size} configurations` : `${all.size} configurations`;
    for (const figure of document.querySelectorAll("figure[data-row]")) {
      figure.classList.toggle("filtered", gone.has(figure.dataset.row));
    }
    for (const view of views.values()) hide(view);
  }

  if (form) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", filter);
    // A browser that goes back keeps the boxes as they were left.
    window.addEventListener("pageshow", filter);
  }

  // One chart of several that are alike ----------------------------------------------------------------------------

  for (const label of document.querySelectorAll(".choose")) {
    const select = label.querySelector("select");
    const figures = [...label.parentElement.querySelectorAll("figure[data-row]")];
    const choose = () => {
      figures.forEach((figure, i) => { figure.hidden = i !== select.selectedIndex; });
      drawAll();
    };
    label.hidden = false;
    select.addEventListener("change", choose);
    choose();
  }

  // Files --------------------------------------------------------------------------------------------------------

  function save(name, url) {
    const link = document.createElement("a");
    link.download = name;
    link.href = url;
    document.body.append(link);
    link.click();
    link.remove();
  }

  function saveText(name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    save(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  // Text that a spreadsheet would take for a formula gets an apostrophe. Source: OWASP, "CSV Injection".
  function cell(value) {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^\s*[=+\-@]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  const toCsv = (lines) => lines.map((line) => line.map(cell).join(",") + "\r\n").join("");

  function readTable(element) {
    return [...element.rows].filter((line) => !line.hidden).map((line) => [...line.cells].map((c) => c.dataset.value ?? c.textContent.trim()));
  }

  for (const button of document.querySelectorAll(".csv")) button.addEventListener("click", () => {
    const element = button.parentElement.querySelector("table");
    saveText(`${element.dataset.file}.csv`, toCsv(readTable(element)), "text/csv;charset=utf-8");
  });

  // All that a chart draws, as one table: the fields of all its data sets side by side.
  function readData(spec) {
    const sets = spec.datasets ?? Object.fromEntries(collectValues(spec).map((rows, i) => [String(i), rows]));
    const points = Object.values(sets).flat();
    const fields = [...new Set(points.flatMap((point) => Object.keys(point)))];
    return [fields, ...points.map((point) => fields.map((field) => point[field]))];
  }

  function collectValues(node) {
    if (!node || typeof node !== "object") return [];
    if (Array.isArray(node.values) && typeof node.values[0] === "object") return [node.values];
    return Object.values(node).flatMap(collectValues);
  }

  for (const button of document.querySelectorAll("[data-save]")) button.addEventListener("click", async () => {
    const place = button.closest("figure").querySelector("[data-chart]");
    const name = place.dataset.chart;
    const kind = button.dataset.save;
    if (kind === "csv") return saveText(`${name}.csv`, toCsv(readData(specs[name])), "text/csv;charset=utf-8");
    await draw(place);
    const view = views.get(name).background(colour("--paper"));
    if (kind === "svg") saveText(`${name}.svg`, await view.toSVG(), "image/svg+xml");
    else save(`${name}.png`, await view.toImageURL("png", 2));
  });

  for (const copy of document.querySelectorAll(".copy")) copy.addEventListener("click", async () => {
    const code = copy.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  });

  // For tests, and for whoever waits for a finished page.
  window.engineBenchPage = { drawAll, views };
})();
