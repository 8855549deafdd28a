"""The benchmark for a GPU finds something in every part, here with small sizes on the CPU."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts.rows import Row


@pytest.mark.long
@pytest.mark.slow
def test_every_part_runs_and_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    rows = gpu.main(minutes=10, out=tmp_path)
    assert {row.part for row in rows} == set(gpu.PARTS)
    failed = [row for row in rows if "FAILED" in row.note or row.words == ["NOT AS ASKED"]]
    assert not failed, failed
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert len(kept["rows"]) == len(rows) and all(": finished" in end for end in kept["parts"])
    assert "No GPU here" in (tmp_path / "gpu.md").read_text()


def test_a_part_for_which_no_time_is_left_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpu.main(minutes=0.1, parts=["fields"], out=tmp_path) == []
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == [
        "fields on the cpu: not begun, the time was over"
    ]


def test_parts_that_are_not_taken_again_stay(tmp_path):
    report = gpu.Report(tmp_path, "a machine", None)
    report.add(
        [Row("a field", 1.0, part="fields"), Row("a flow", 2.0, part="same")], "fields on the cpu: finished, 1 s"
    )
    again, elsewhere = gpu.Report(tmp_path, "a machine", None), gpu.Report(tmp_path, "another machine", None)
    for one in (again, elsewhere):
        one.keep(["fields"])
    assert [row.what for row in again.rows] == ["a flow"] and again.ends == []
    assert elsewhere.rows == []


def test_two_devices_agree_in_words_and_to_the_rounding_of_numbers():
    one = Row("a flow", words=["holds"], numbers=[1.0, 100.0])
    assert gpu.agreement(one, Row("a flow", words=["holds"], numbers=[1.0, 100.0001])) == (
        "1 words the same, numbers to 1e-06"
    )
    assert gpu.agreement(one, Row("a flow", words=["violated"])) == "DIFFERENT: holds / violated"
    assert gpu.agreement(one, Row("a flow", words=["holds", "holds"])) == "DIFFERENT: "


def test_a_line_has_both_devices_and_what_is_missed_of_the_bound():
    rows = [
        Row("a field", 2e-9, "sample", 1e-9, part="fields", device="gpu"),
        Row("a field", 2e-7, "sample", 4e-8, part="fields", device="cpu"),
    ]
    assert "| fields | a field | sample | 2 ns | 200 ns | 100 | 2.00 | 5.00 |  |" in gpu.table(rows)
