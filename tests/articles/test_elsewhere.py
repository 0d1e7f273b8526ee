"""What others have published: every row can be compared, and names what is declared."""

from pomology.articles import elsewhere


def test_what_others_have_published_can_be_compared():
    rows = elsewhere.rows()
    assert len(rows) > 3000 and {row["source"] for row in rows} == set(elsewhere.SOURCES)
    assert {fault for row in rows for fault in row["faults"]} <= elsewhere.FAULTS.keys()
    assert {row["precision"] for row in rows} <= {*elsewhere.PRECISIONS}
    assert all(row["si"] > 0 and elsewhere.rate(row) > 0 for row in rows)
    assert {row["workload"] for row in rows} <= elsewhere.WORKLOADS.keys()
