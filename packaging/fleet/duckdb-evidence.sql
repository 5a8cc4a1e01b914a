-- The evidence beside the accounts of a fleet, as a view for DuckDB. Load duckdb.sql first:
--
--   duckdb -cmd "SET VARIABLE exports = '/mnt/exports'" -cmd ".read /usr/share/gpumeter/fleet/duckdb.sql" \
--     -cmd ".read /usr/share/gpumeter/fleet/duckdb-evidence.sql"
--
-- A file of its own, since DuckDB refuses a view over a directory without any evidence.parquet.

-- How were GPUs used? A row per day and series (kind = 'shape') or run that ended (kind = 'run'), of files that belong to the
-- account of their day.
CREATE OR REPLACE VIEW evidence AS
WITH revision AS (
    SELECT file_name, parse_dirpath(file_name) AS folder, decode(value) -> '$.revision' AS revision
    FROM parquet_kv_metadata(getvariable('exports') || '/cluster=*/date=*/ledger=*/*.parquet')
    WHERE key = 'gpumeter.header'
)
SELECT * EXCLUDE (filename)
FROM read_parquet(
    getvariable('exports') || '/cluster=*/date=*/ledger=*/evidence.parquet',
    union_by_name = true, hive_partitioning = false, filename = true
)
WHERE filename IN (
    SELECT own.file_name
    FROM revision AS own JOIN revision AS account USING (folder, revision)
    WHERE account.file_name IN (SELECT file_name FROM newest_file)
);
