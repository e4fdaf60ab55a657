"""Fill a demo hospital's empty database with its share of the Wisconsin breast cancer patients (public records).

seed.py SHARE SHARES URL PASSWORD_FILE: the table `patients`, written once; the schema is `schema.toml` beside this file.
"""

import sys
from pathlib import Path

from sqlalchemy import create_engine, inspect, make_url


def main(share: int, shares: int, url: str, password_file: str) -> None:
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg", password=Path(password_file).read_text().strip())
    )
    if inspect(engine).has_table("patients"):
        print("The database has its patients already.")
        return
    # Imported where it is needed: a database that is filled costs a second, not ten.
    from polyclinic.ehr.datasets import builtin
    from polyclinic.ehr.partition import partition_rows

    dataset = builtin()["breast-cancer"]
    records = dataset.load()
    rows = list(partition_rows(records, dataset.schema, "iid", shares, 0, 1.0).values())[share]
    with engine.begin() as connection:
        records.iloc[rows].to_sql("patients", connection, index=False)
    print(f"{len(rows)} patients written.")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
