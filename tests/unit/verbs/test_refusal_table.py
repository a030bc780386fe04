"""What is refused: the exit code, and what the message has to name; each line is one refusal.

The words of a message are those of the line that raises it. Here stand the facts: what was given, what was expected,
the option or the command that helps. `...` stands for any text.
"""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import golden_graphs
from fakes.trtexec_shim import install_trtexec
from printed_facts import find_fault
from processes import Cli

REFUSALS = [
    ("accuracy ort@mlp.onnx --data digits --inputs in.npz", 2, "mlp.onnx...digits...--model MODEL"),
    ("accuracy ort@mlp.onnx --data nosuch", 2, "--data 'nosuch'...(.npz)"),
    ("accuracy ort@mlp.onnx --inputs in.npz", 2, "--inputs...--targets"),
    ("accuracy ort@mlp.onnx --inputs in.npz --targets short.txt --task classification", 2, "--targets...2...3"),
    (
        "accuracy ort@mlp.onnx --inputs in.npz --targets words.txt --task classification",
        2,
        "--metric top1...float32...<U3",
    ),
    (
        "accuracy ort@mlp.onnx --data digits --model digits-mlp --max-metric-drop 0.01",
        2,
        "--max-metric-drop...--ref SIDE",
    ),
    ("accuracy ort@mlp.onnx --data digits --model nosuch", 2, "--data digits...nosuch...--data DIR, FILE.npz"),
    (
        "accuracy ort@mlp.onnx --data digits --model digits-mlp --metric nosuch",
        2,
        "--metric 'nosuch'...package.module:function...top1, top5, f1",
    ),
    ("bench mlp.onnx --engine nosuch", 2, "'nosuch'...pytorch...ort...openvino...tensorrt...fake"),
    ("bench nosuch.onnx --engine fake", 5, "'nosuch.onnx'...`enginebench export`"),
    ("bench mlp.onnx --engine fake --junit j.xml", 2, "--gate, --junit...--summary...--against SIDE"),
    ("bench mlp.onnx --engine fake --limit snr=20", 2, "--limit...--against SIDE"),
    ("bench mlp.onnx --engine fake --against fake --limit nosuch=1", 2, "nosuch=1...snr"),
    ("bench mlp.onnx --engine fake --beside fake --against fake", 2, "--against...--beside"),
    ("load mlp.onnx --engine ort --qps 9 --traffic batch=1,batch=8 --inputs in.npz", 2, "--inputs...--traffic"),
    ("tune mlp.onnx --engines ort --traffic batch=1,batch=8 --goal throughput", 2, "--goal throughput...--traffic"),
    (
        "tune mlp.onnx --engines ort:sessions=each --traffic batch=1,batch=8 --deliver bundle",
        2,
        "--deliver...ort:sessions=each...ort:sessions=one",
    ),
    ("tune mlp.onnx --engines ort --traffic batch=1,batch=8 --batch 2", 2, "--batch...--traffic"),
    ("load mlp.onnx --engine ort --qps 9 --traffic batch=1:-1,batch=8", 2, "weight -1.0...above 0"),
    ("bench mlp.onnx --engine fake --batch 2000000000000", 2, "batch of 2000000000000...bytes of memory"),
    ("bench mlp.onnx --engine fake --beside fake --gate", 2, "--gate...--beside"),
    ("bench mlp.onnx --engine fake --beside fake --inputs in.npz", 2, "--inputs...--beside"),
    ("bench mlp.onnx --engine fake --beside nosuch.json", 2, "'nosuch.json'...ENGINE@TARGET...(rows/....json)"),
    ("bench mlp.onnx --engine fake --percentile 101", 2, "--percentile '101'...0...100"),
    ("bench mlp.onnx --engine fake --dry-run", 2, "trtexec...fake"),
    ("bench mlp.onnx --engine fake --log f.log", 2, "fake...--log"),
    ("bench mlp.onnx --engine fake --against nosuch.json", 2, "'nosuch.json'...ENGINE@TARGET...(rows/....json)"),
    ("bench mlp.onnx --engine tensorrt", 3, "cuda:0...GPU"),
    ("build mlp.onnx --engine ort", 2, "ort...bench or run"),
    (
        "build mlp.onnx --trtexec ./trtexec --batch 2 --min-shapes input:1x64 "
        "--opt-shapes input:8x64 --max-shapes input:32x64 --dry-run",
        2,
        "--batch...shapes",
    ),
    (
        "build mlp.onnx --trtexec ./trtexec --min-shapes input:8x64 "
        "--opt-shapes input:4x64 --max-shapes input:32x64 --dry-run",
        2,
        "input...(8, 64), (4, 64), (32, 64)",
    ),
    ("build mlp.onnx --trtexec ./trtexec --opt-shapes picture:8x64 --dry-run", 2, "picture...input"),
    ("build mlp.onnx --dry-run --tensorrt-version 6", 2, "'6'...8.6...8.6.1, 10.16...11.1"),
    (
        "build mlp.onnx --dry-run --tensorrt-version 11.0 --weak-typing --precision fp16",
        2,
        "--weak-typing...11.0.0...--fp16...11...enginebench...F.onnx --to PRECISION",
    ),
    ("build mlp.onnx --trtexec ./trtexec --precision fp12", 2, "'fp12'...fp32, tf32, fp16, bf16, int8, fp8, int4"),
    ("build mlp.onnx --engine tensorrt --extra --verbose", 2, "tensorrt...--extra...trtexec"),
    ("build mlp.onnx --engine tensorrt --trtexec t", 2, "--trtexec...engine trtexec"),
    ("bench mlp.onnx --engine ort --trtexec /bin/true", 2, "--trtexec"),
    *(
        (f"{command} ort --input-shape input:1x64,2x64", 2, "--input-shape...only run measures each")
        for command in (
            "bench mlp.onnx --engine",
            "profile mlp.onnx --engine",
            "load mlp.onnx --qps 5 --engine",
            "tune mlp.onnx --engines",
        )
    ),
    ("build mlp.onnx --out mlp.onnx", 2, "--out mlp.onnx...--out"),
    ("build mlp.onnx --normalize 0/1", 2, "--normalize...--input-dtype uint8"),
    ("build mlp.onnx --input-dtype uint8 --normalize 0,1/2", 2, "--normalize 0,1/2...MEAN/STD...NAME:MEAN/STD...0"),
    ("build mlp.onnx --input-dtype uint8 --normalize 0/0", 2, "--normalize 0/0...MEAN/STD...NAME:MEAN/STD...0"),
    ("build mlp.onnx --input-dtype uint8 --normalize a/1", 2, "--normalize a/1...MEAN/STD...NAME:MEAN/STD...0"),
    (
        "build mlp.onnx --input-dtype uint8 --dry-run --tensorrt-version 10.16",
        2,
        "--input-dtype uint8...mlp.onnx...--normalize MEAN/STD...0",
    ),
    (
        "build mlp.onnx --engine trtexec:refit=0 --refit --dry-run --tensorrt-version 10.16",
        2,
        "trtexec:refit=0...refit=1",
    ),
    (
        "bench m.plan --engine trtexec:graph=1 --no-cuda-graph --dry-run --tensorrt-version 10.16",
        2,
        "trtexec:graph=1...graph=0",
    ),
    ("bench m.plan --engine trtexec --tensorrt-version 10.16", 2, "--tensorrt-version...--dry-run"),
    ("bench m.plan --engine trtexec --dry-run --tensorrt-version 10.16 --against trtexec", 2, "--dry-run...--against"),
    ("bench m.plan --engine trtexec --dry-run --tensorrt-version 10.16 --cache cold", 2, "trtexec...GPU's...--cache"),
    (
        "bench m.plan --engine trtexec:profile_index=1.5 --dry-run --tensorrt-version 10.16",
        2,
        "profile_index='1.5'...trtexec...0",
    ),
    ("bench digits-cnn --engine trtexec --dry-run --tensorrt-version 10.16", 2, "onnx...(enginebench...digits-cnn)"),
    (
        "bench fixed.onnx --engine trtexec --trtexec ./trtexec --extra --verbose --extra --verbose",
        2,
        "--verbose...trtexec",
    ),
    (
        'build fixed.onnx --trtexec ./trtexec --precision int8 --extra "--maxAuxStreams=1 --maxAuxStreams=2"',
        2,
        "--maxAuxStreams=2...--maxAuxStreams=1",
    ),
    ("run fixed.onnx --engines ort -- --avgRuns=20", 2, "--avgRuns=20: --extra"),
    (
        "bench fixed.onnx --engine trtexec --trtexec ./trtexec -- --avgRun=20",
        2,
        "--avgRun=20: trtexec 10.16.0...--avgRun...--avgRuns?",
    ),
    ("drift fake@mlp.onnx fake@nosuch.onnx", 5, "'nosuch.onnx'...tiny.onnx, open.onnx)...`enginebench export`"),
    (
        "drift fake@mlp.onnx fake@mlp.onnx --limit nosuch=1",
        2,
        "--limit 'nosuch=1'...NAME=VALUE...NAME...cosine_min, centred_cosine",
    ),
    ("drift fake@mlp.onnx fake@mlp.onnx --inputs narrow.npz", 5, "'input'...3x10...batchx64...float32[batchx64]"),
    ("run mlp.onnx --resume --out void", 5, "void: found no run.json...folder of a run"),
    ("run void", 2, "'void' is a folder...hf:./FOLDER...bench and load"),
    ("infer mlp.onnx", 2, "INPUT.npz...--inputs"),
    ("infer mlp.onnx in.npz --out in.npz", 2, "--out in.npz is the file of the inputs...another --out"),
    ("infer mlp.onnx nosuch.npz", 2, "--inputs nosuch.npz...F.npz...package.module:function"),
    ("infer mlp.onnx mlp.onnx", 2, "--inputs mlp.onnx...F.npz...package.module:function"),
    ("infer mlp.onnx cut.npz", 5, "cut.npz...numpy.savez"),
    ("infer mlp.onnx empty.npz", 5, "empty.npz...numpy.savez"),
    ("infer mlp.onnx objects.npz", 5, "objects.npz...numpy.savez"),
    ("infer fixed.onnx in.npz", 5, "'input'...3x64...1x64...float32[1x64]"),
    ('env make "a/b" numpy==2.0', 2, "'a/b'...letters, digits, dots, hyphens"),
    ("env remove nosuch", 2, "'nosuch'"),
    (
        "bisect mlp.onnx --package onnxruntime --good 1.20 --bad 1.21 --margin -1",
        2,
        "--margin '-1'...0...1...5%...0.05",
    ),
    ("stages digits-mlp --images nosuch", 5, "--images nosuch...no such folder"),
    ("roofline --threads 0", 2, "--threads '0'...1"),
    ("roofline --out /dev/null", 2, "out='/dev/null'...folder"),
    ("export nosuch", 2, "'nosuch'...efficientnet-lite0...resnet18, resnet50, mobilenet_v3_small, eff"),
    ("export mlp.onnx", 2, "mlp.onnx...ONNX"),
    ("export digits-mlp --dynamic-axes input", 2, "--dynamic-axes 'input'...0...ids:1"),
    ("calibrate mlp.onnx", 2, "--data...--inputs"),
    ("calibrate mlp.onnx --data fake --percentile 99", 2, "--percentile...--method"),
    ("calibrate mlp.onnx --data fake --device cuda:0", 2, "--device cuda:0...CPU...--device"),
    (
        "quantize mlp.onnx --to int8 --calib nosuch.json",
        2,
        "--calib nosuch.json...calib.json, F.npy, F.npz...enginebench...--data",
    ),
    ("quantize mlp.onnx --to int8 --calib empty.json", 5, "empty.json...`model`"),
    ("quantize nosuch.onnx --to fp16", 5, "nosuch.onnx...`export`"),
    ("run nosuch", 2, "'nosuch'...digits-cnn...timm:NAME...onnx...package.module:factory"),
    ("run mlp.onnx --engines fake:latency_us=long", 2, "latency_us='long'...fake"),
    ("run mlp.onnx --engines fake,fake", 2, "fake...`bench --against`"),
    ("run mlp.onnx --engines fake --batch 0", 2, "--batch '0'...positive"),
    ("run mlp.onnx --engines fake --batch many", 2, "--batch 'many'"),
    ("run mlp.onnx --engines fake --baseline ort", 2, "--baseline ort...--engines fake"),
    ("run mlp.onnx --engines fake --device tpu", 2, "--device 'tpu'...cuda:0"),
    ("run mlp.onnx --engines fake --inputs double.npz", 5, "'input'...float64...float32...float32[batchx64]"),
    ("run mlp.onnx --engines fake --inputs misnamed.npz", 5, "'picture'...'input'...float32[batchx64]"),
    ("run mlp.onnx --engines fake --max-metric-drop 0.1 --max-top1-drop 1", 2, "--max-top1-drop...--max-metric-drop"),
    ("run mlp.onnx --engines fake --env two", 2, "--env 'two'...NAME=PATH"),
    ("run mlp.onnx --engines fake --out taken", 2, "taken...--out"),
    ("run mlp.onnx --engines ort --ort-extension nosuch.so", 2, "--ort-extension nosuch.so...module's"),
    ("run mlp.onnx --engines fake --env =x", 2, "''...letters, digits"),
    ("run mlp.onnx --engines fake --env old=nowhere", 2, "old: nowhere...virtual environment"),
    ("run mlp.onnx --engines fake --env old=void", 2, "old: void...bin/python"),
    ("run mlp.onnx --engines fake --env old=file.txt", 2, "old: file.txt...program"),
    ("run resnet19", 2, "'resnet19'...resnet18 or resnet50...timm:NAME"),
    ('run "nothing like it"', 2, "'nothing like it'...efficientnet-lite0...resnet18, resnet50, mobilenet_v3_s"),
    ('run ""', 2, "the argument after run: the text is empty"),
    ("run weights.pth", 5, "'weights.pth'...no such file"),
    ("run model.plan", 5, "'model.plan'...`enginebench build`"),
    ("run my-package.mod:factory", 2, "'my-package.mod:factory'...package.module:factory"),
    ("run :factory", 2, "':factory'...package.module:factory...efficientnet-lite0...resnet18, resnet"),
    ("run timm:", 2, "'timm:'...timm:resnet18"),
    ("run no/such/folder/a.onnx", 5, "'no/such/folder/a.onnx'...`enginebench export`"),
    ("run folder.onnx", 5, "'folder.onnx'...folder...file"),
    (
        "budget --t-pre-ms 0 --t-copy-in-ms 0 --t-compute-ms 1 --t-copy-back-ms 0 --t-post-ms 0 "
        "--link tape --bytes-in 4",
        2,
        "'tape'...usb2, usb3, eth100, eth1g, pcie3x4, BYTES_PER_S+LATENCY_US...1e-06",
    ),
    ("budget --from empty.json", 5, "empty.json...`schema`...JSON"),
    ("fpga verilog mlp.onnx --out v.v", 5, "mlp.onnx...'first'...enginebench...F.onnx --to int8"),
    ("fpga synth --part nosuch", 2, "'nosuch'...ice40up5k, ice40hx8k, ecp5-25k, up5k, hx8k, ecp5"),
    ("load mlp.onnx", 2, "--scenario...--qps...--find-capacity...--arrivals"),
    (
        "load mlp.onnx --engine fake --scenario single --qps 5",
        2,
        "--qps, --find-capacity...--arrivals...--scenario...single",
    ),
    ("run mlp.onnx --engines ort --traffic batch=1:0", 2, "--traffic 'batch=1'...0.0...above 0"),
    ("run mlp.onnx --engines ort --traffic batch=1,batch=x", 2, "--traffic 'batch=x'...batch=N"),
    ("run mlp.onnx --engines ort --traffic nosuch.txt", 2, "--traffic 'nosuch.txt'...batch=1:0.7"),
    ("run mlp.onnx --engines ort:pad=many --traffic batch=1,batch=8", 2, "pad='many'...a multiple...largest"),
    ("run mlp.onnx --engines ort --traffic batch=1 --batch 8", 2, "--batch...--traffic"),
    ("run mlp.onnx --engines ort --traffic batch=1 --input-shape input:8x64", 2, "--input-shape...--traffic"),
    ("run mlp.onnx --engines ort --traffic batch=1 --scope pipelined", 2, "pipelined"),
    ("run mlp.onnx --engines ort --traffic 8x64 --inputs in.npz", 2, "--inputs...--traffic"),
    (
        "run digits-cnn --engines ort --traffic 9,16",
        2,
        "--traffic 9...enginebench export digits-cnn...--dynamic-axes...",
    ),
    ("load nosuch:make --engine ort --qps 9 --traffic tokens=9", 5, "nosuch"),
    ("tune digits-cnn --engines ort --traffic width=9+batch=2", 2, "--traffic width=9...--dynamic-axes...:1..."),
    ("run mlp.onnx --engines ort --traffic length=9", 2, "--traffic length=9...'length'...batch"),
    ("load mlp.onnx --engine fake --find-capacity", 2, "--find-capacity...--p99-limit-ms"),
    ("load mlp.onnx --engine fake --qps 5 --find-capacity --p99-limit-ms 5", 2, "--find-capacity...--qps...--arrivals"),
    ("load mlp.onnx --engine fake --qps 5 --streams 0", 2, "--streams '0'...positive"),
    ("load mlp.onnx --engine fake --qps 0.1 --duration 1", 2, "--qps 0.1...1...--duration 10...--qps 1"),
    ("load mlp.onnx --engine fake --scenario single --device cuda:0,cuda:1", 2, "--device...single"),
    ("load mlp.onnx --engine fake --qps 9 --device cuda:0,cpu", 2, "--device cuda:0,cpu...8"),
    (
        "load mlp.onnx --engine fake --qps 9 --device " + ",".join(f"cuda:{n}" for n in range(9)),
        2,
        "cuda:8...at most 8",
    ),
    ("sweep s.toml", 2, "--out STORE...missing"),
    ("sweep s.toml --out other --on nosuch", 2, "--on nosuch...ray://HOST:PORT"),
    ("tune mlp.onnx --engines fake --time-budget soon", 2, "--time-budget 'soon'...20m, 90s...1.5h"),
    ("tune mlp.onnx --engines fake --goal capacity", 2, "--goal capacity...--p99-limit-ms"),
    (
        "tune mlp.onnx --engines fake --limit cosine",
        2,
        "--limit 'cosine'...NAME=VALUE...NAME...cosine, cosine_min, centred_cosine",
    ),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graphs, inputs, and files that are not what they should be."""
    folder = tmp_path_factory.mktemp("refusals")
    golden_graphs.make_all(folder)
    install_trtexec(folder, "10.16")
    (folder / "short.txt").write_text("3\n1\n")
    (folder / "words.txt").write_text("3\none\n4\n")
    (folder / "cut.npz").write_bytes((folder / "in.npz").read_bytes()[:100])
    (folder / "file.txt").write_text("x\n")
    (folder / "empty.npz").touch()
    (folder / "empty.json").write_text("{}\n")
    (folder / "s.toml").write_text('engines = ["fake"]\n[[model]]\nname = "mlp.onnx"\n')
    for name in ("taken", "void", "folder.onnx"):
        (folder / name).mkdir()
    (folder / "taken" / "run.json").write_text("{}\n")
    return folder


@pytest.fixture
def here(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    before = list_files(tmp_path)
    yield tmp_path
    assert list_files(tmp_path) == before, "a refusal leaves nothing behind"


def list_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".js", ".lock")}


@pytest.mark.parametrize(("command", "code", "fact"), REFUSALS, ids=[command for command, _, _ in REFUSALS])
@pytest.mark.usefixtures("here")
def test_a_refusal_names_its_facts(cli: Cli, command: str, code: int, fact: str) -> None:
    if command.startswith("stages digits-mlp "):
        pytest.importorskip("torch")  # the default engine of `stages`
    done = cli(*shlex.split(command))
    assert done.returncode == code, done.stderr
    assert find_fault([], done.stdout) is None
    fault = find_fault([f"error: ...{fact}"], done.stderr)
    assert fault is None, fault
