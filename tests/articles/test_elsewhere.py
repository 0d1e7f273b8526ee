"""What others have published: every row can be compared, and names what is declared."""

import others

from pomology.articles import elsewhere


def test_what_others_have_published_can_be_compared():
    rows = elsewhere.rows()
    assert len(rows) > 3000 and {row["source"] for row in rows} == set(others.SOURCES)
    assert {fault for row in rows for fault in row["faults"]} <= elsewhere.FAULTS.keys()
    assert {row["precision"] for row in rows} <= {*others.PRECISIONS}
    assert all(row["si"] > 0 and elsewhere.rate(row) > 0 for row in rows)
    # Random numbers on the device have one name, whatever the sources say.
    made_up = {"synthetic", "ImageNet, syntetic", "random, on the GPU"}
    assert made_up.isdisjoint(row["config"].get("data") for row in rows)
    assert {row["workload"] for row in rows} <= elsewhere.WORKLOADS.keys()
