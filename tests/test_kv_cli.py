"""`zcube kv` and `zcube calibrate` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from zcube_command import one_message, zcube

from scenario.load import check_scenario


def test_help_fits_one_screen_and_shows_an_example() -> None:
    for verb in ("kv", "calibrate"):
        result = zcube(verb, "--help")
        assert result.returncode == 0
        assert len(result.stdout.splitlines()) <= 50
        assert "Example" in result.stdout


def test_kv_says_bytes_split_and_wire_time() -> None:
    result = zcube("kv", "--model", "glm-5.1", "--tokens", "8192,131072")
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    for part in (
        "61,464 B a token", "78 layers * 656 B", "8.056", "644.5", "322.2", "161.1", "0.504", "40.3",
        "every rank sends the whole copy", "first rank only",
    ):  # fmt: skip
        assert part in said


def test_kv_as_json(tmp_path: Path) -> None:
    result = zcube("kv", "--model", "llama-3.1-70b", "--tokens", "8192", "--tp", "4", "--nic-gbps", "50", "--json")
    found = json.loads(result.stdout)
    assert (found["bytes_per_token"], found["attention"], found["dtype"]) == (327_680, "GQA", "bf16")
    (prompt,) = found["prompts"]
    assert prompt["bytes"] == 8192 * 327_680
    assert prompt["one_nic_s"] == {"50": pytest.approx(8192 * 327_680 * 8 / 50e9)}
    (split,) = prompt["conventions"]
    assert (split["ranks"], split["bytes_per_rank"]) == (4, 8192 * 327_680 // 4)
    assert split["wire_s"]["50"] == pytest.approx(prompt["one_nic_s"]["50"] / 4)

    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 9,
    }))  # fmt: skip
    from_file = [json.loads(zcube("kv", option, str(config), "--json").stdout) for option in ("--config", "--model")]
    assert from_file[0] == from_file[1]
    assert from_file[0]["bytes_per_token"] == 2 * 576 * 2
    numbers = ("--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--bytes-per-element", "1")
    assert json.loads(zcube("kv", *numbers, "--json").stdout)["bytes_per_token"] == 163_840


def test_kv_lists_presets() -> None:
    listed = {each["model"]: each for each in json.loads(zcube("kv", "--list", "--json").stdout)}
    assert listed["glm-5.2-fp8"]["bytes_per_token"] == 53_940
    table = zcube("kv", "--list").stdout
    assert "glm-5.1 for glm-5.1-fp8" in " ".join(table.split())
    assert all(name in table for name in listed)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "gpt"], ["--model = 'gpt'", "glm-5.1-fp8"]),
        (["--dtype", "fp4"], ["--dtype = 'fp4'", "int8"]),
        (["--dtype", "int8"], ["int8", "bf16 or fp8"]),
        (["--tokens", "8k"], ["--tokens = '8k'", "whole numbers"]),
        (["--tokens", "0"], ["--tokens = '0'", "from 1"]),
        (["--nic-gbps", "100,fast"], ["--nic-gbps = '100,fast'"]),
        (["--nic-gbps", "nan"], ["--nic-gbps = 'nan'"]),
        (["--config", "/nowhere.json"], ["--config", "/nowhere.json"]),
        (["--layers", "4"], ["--kv-heads", "--head-dim"]),
        (["--layers", "4", "--kv-heads", "1", "--head-dim", "1", "--dtype", "fp8"], ["--dtype", "--bytes-per-element"]),
        (["--model", "qwen3-8b", "--layers", "4"], ["give one of"]),
        (["--tp", "0"], ["--tp"]),
    ],
)
def test_kv_bad_options(arguments: list[str], parts: list[str]) -> None:
    one_message(zcube("kv", *arguments), 2, *parts)


def test_calibrate_prints_a_scenario(tmp_path: Path) -> None:
    transfers, prefill = tmp_path / "transfers.csv", tmp_path / "prefill.csv"
    sizes = [10**6, 10**7, 10**8, 10**9]
    transfers.write_text("bytes,ms\n" + "".join(f"{n},{2 + n / 160e6}\n" for n in sizes) + "10000000,900\n")
    prefill.write_text("prefill_tokens,ms\n" + "".join(f"{n},{40 + n / 48}\n" for n in (512, 2048, 8192)))
    files = (str(transfers), str(prefill), "--nics", "8", "--gpus", "8")
    result = zcube("calibrate", *files)
    assert result.returncode == 0, result.stderr
    said, _, snippet = result.stdout.partition("For the scenario file:")
    for part in ("n = 4", "1 left out", "95 % interval", "residual"):
        assert part in said
    assert "row 5, 10,000,000 bytes in 900 ms (the line: 2.062 ms)" in " ".join(said.split())
    settings = yaml.safe_load(snippet)
    assert settings == {
        "fabric": {"gpu_gbps": 160.0},
        "serving": {"transfer_overhead_ms": 2.0, "prefill_base_ms": 40.0, "prefill_tokens_per_s_per_gpu": 6000.0},
    }
    assert check_scenario(settings).fabric.gpu_gbps == 160

    found = json.loads(zcube("calibrate", *files, "--json").stdout)
    assert found["scenario"] == settings
    assert found["transfer"]["outliers"] == [4]
    assert found["transfer"]["nic_gbps"] == pytest.approx(160)
    assert found["prefill"]["n"] == 3


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gb,us\n1e300,1\n1e305,2\n", ["transfers: row 1: size", "'inf'"]),
        ("tokens,ms\n1000,5\n2000,5.000001\n4000,5.000003\n", ["prefill_tokens_per_s_per_gpu", "1 to 1e+09"]),
        ("bytes,ms\n1,2\n3,x\n", ["measured.csv, line 3, column ms", "'x'"]),
        ("bytes,ms\n1,2\n", ["transfers", "two different sizes"]),
        ("bytes,ms\n1,2\n2,1\n", ["does not grow"]),
    ],
)
def test_calibrate_bad_files(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    one_message(zcube("calibrate", str(path)), 2, *parts)
