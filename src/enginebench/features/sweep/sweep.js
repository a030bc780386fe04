"use strict";
// The page of a sweep: a matrix of which only the lines in view of a filter are made, and pages of single groups.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MOST = 300;
  const matrix = document.querySelector("#matrix .table");
  const body = matrix.querySelector("tbody");
  const form = document.createElement("form");
  const count = document.createElement("p");
  form.className = "filters";
  count.setAttribute("role", "status");
  count.id = "count";
  matrix.before(form);
  matrix.querySelector(".csv").remove();

  function label(name, field) {
    const made = document.createElement("label");
    made.append(`${name} `, field);
    form.append(made);
    return field;
  }

  // A choice for each name of which there are several, and words to look for.
  const filters = data.keys.map((name) => {
    const values = [...new Set(data.lines.map((entry) => entry.keys[name]))].sort();
    const select = document.createElement("select");
    select.name = name;
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    return values.length > 1 ? label(name, select) : null;
  }).filter(Boolean);
  const text = label("words", Object.assign(document.createElement("input"), { type: "search" }));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.append(count);
  let sorted = -1;
  let upwards = true;

  function cell(value, kind) {
    const made = document.createElement(kind);
    made.textContent = value;
    return made;
  }

  // A line is [what is shown, what is sorted by, link] for every column, made in the order of the headings.
  function line(entry) {
    const row = document.createElement("tr");
    entry.cells.forEach(([shown, , link], i) => {
      const made = cell(link ? "" : shown, i === 0 ? "th" : "td");
      if (link) {
        const anchor = cell(shown, "a");
        anchor.href = link;
        made.append(anchor);
      }
      if (data.numbers.includes(i)) made.className = "number";
      row.append(made);
    });
    return row;
  }

  function meets(entry) {
    if (filters.some((select) => select.value !== "" && entry.keys[select.name] !== select.value)) return false;
    const words = text.value.toLowerCase().split(" ").filter(Boolean);
    return words.every((word) => entry.cells.some(([shown]) => String(shown).toLowerCase().includes(word)));
  }

  function order(a, b) {
    const [x, y] = [a.cells[sorted][1], b.cells[sorted][1]];
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * (upwards ? 1 : -1);
  }

  function show() {
    const found = data.lines.filter(meets);
    if (sorted >= 0) found.sort(order);
    body.replaceChildren(...found.slice(0, MOST).map(line));
    const cut = found.length > MOST ? `, the first ${MOST} shown` : "";
    count.textContent = `${found.length} of ${data.lines.length} lines${cut}`;
  }

  document.querySelectorAll("#matrix thead th").forEach((heading, i) => {
    heading.querySelector("button").addEventListener("click", () => {
      upwards = sorted === i ? !upwards : true;
      sorted = i;
      document.querySelectorAll("#matrix thead th").forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
      show();
    });
  });
  filters.forEach((select) => select.addEventListener("change", show));
  text.addEventListener("input", show);

  // On the page of a group: the row that the address names, with all that is known of it.
  const place = document.getElementById("row");
  function showRow() {
    const entry = data.details && data.details[decodeURIComponent(location.hash.slice(1))];
    if (!place || !entry) return;
    const list = document.createElement("dl");
    list.className = "facts";
    entry.facts.forEach(([name, value]) => list.append(cell(name, "dt"), cell(value, "dd")));
    const warnings = document.createElement("ul");
    warnings.className = "list";
    entry.warnings.forEach((warning) => warnings.append(cell(warning, "li")));
    place.replaceChildren(cell(entry.title, "h2"), list, warnings);
    place.scrollIntoView();
  }
  addEventListener("hashchange", showRow);
  show();
  showRow();
})();
