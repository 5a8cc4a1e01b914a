-- Views over a directory of exports (ledger.export.directory), tested with DuckDB 1.5; docs/sql.md shows each with its answer.
--
--   duckdb -init /usr/share/gpumeter/fleet/duckdb.sql
--   duckdb -cmd "SET VARIABLE exports = '/mnt/exports'" -cmd ".read /usr/share/gpumeter/fleet/duckdb.sql"
--
-- Sums are of all days in the directory; a condition on `date` in a query over `account` selects some. A bill over the same
-- files (gpumeter bill --exports) also settles GPUs that two ledgers account for at one time, which no view here does.

-- Which directory?
SET VARIABLE exports = coalesce(getvariable('exports'), '/var/lib/gpumeter/exports');

-- Money: 3.6e12ths of a billionth, cut after nine places.
CREATE OR REPLACE MACRO money(exact) AS
    CAST(CAST(exact AS HUGEINT) // 3600000000000 AS DECIMAL(38, 0)) * CAST(0.000000001 AS DECIMAL(9, 9));

CREATE OR REPLACE MACRO hours(ns) AS round(ns / 3.6e12, 4);

-- Which files count? Of a ledger's day the newest: a node that changed its cluster may have left a file in the old one.
CREATE OR REPLACE VIEW newest_file AS
WITH header AS (
    SELECT file_name, decode(value) AS json
    FROM parquet_kv_metadata(getvariable('exports') || '/cluster=*/date=*/ledger=*/day.parquet')
    WHERE key = 'gpumeter.header'
)
SELECT file_name
FROM header
QUALIFY row_number() OVER (
    PARTITION BY json ->> '$.ledger', json ->> '$.day'
    ORDER BY json ->> '$.revision.settled_until' DESC, CAST(json ->> '$.revision.slot_ns' AS BIGINT) DESC NULLS LAST,
        CAST(json ->> '$.revision.rate' AS TIMESTAMP) DESC, CAST(json ->> '$.revision.terms' AS TIMESTAMP) DESC,
        CAST(json ->> '$.revision.rules' AS TIMESTAMP) DESC, CAST(json ->> '$.revision.evidence_ns' AS BIGINT) DESC NULLS LAST, file_name
) = 1;

-- What was accounted for? A row per quarter hour, GPU, slot and holder.
CREATE OR REPLACE VIEW account AS
SELECT
    * EXCLUDE (filename),
    CAST(make_timestamp(epoch_us(quarter_hour)) AS DATE) AS date,
    starts_with(tenant, '__') AS is_reserved,
    within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns AS held_ns,
    used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns AS used_ns
FROM read_parquet(
    getvariable('exports') || '/cluster=*/date=*/ledger=*/day.parquet',
    union_by_name = true, hive_partitioning = false, filename = true
)
WHERE filename IN (SELECT file_name FROM newest_file);

-- What does each tenant owe? Rows without currency are time without a price.
CREATE OR REPLACE VIEW bill_by_tenant AS
SELECT
    tenant, currency,
    hours(sum(held_ns)) AS held, hours(sum(used_ns)) AS used, hours(sum(idle_ns)) AS idle, hours(sum(charged_ns)) AS charged,
    round(sum(energy_static_uj + energy_dynamic_uj) / 3.6e12, 4) AS kwh,
    sum(cost) AS exact_cost, money(sum(cost)) AS cost
FROM account
GROUP BY tenant, currency
ORDER BY tenant, currency;

-- Which teams pay for GPU time that nobody uses? Percent are of the time that was measured.
CREATE OR REPLACE VIEW idle_by_team AS
SELECT
    tenant, currency,
    hours(sum(held_ns)) AS held, hours(sum(unmeasured_ns)) AS unmeasured, hours(sum(idle_ns)) AS idle,
    round(100 * sum(idle_ns) / nullif(sum(within_ns + lent_ns + idle_ns), 0), 1) AS idle_percent,
    round(sum(CAST(cost - energy_cost AS DOUBLE) * idle_ns / nullif(charged_ns, 0)) / 3.6e21, 2) AS idle_cost
FROM account
WHERE NOT is_reserved
GROUP BY tenant, currency
ORDER BY idle_cost DESC NULLS LAST, tenant;

-- How busy is each model of GPU over the day? Hours of UTC; gpus is how many there were.
CREATE OR REPLACE VIEW use_by_model_and_hour AS
SELECT
    gpu_model, date_trunc('hour', make_timestamp(epoch_us(quarter_hour))) AS hour,
    count(DISTINCT gpu_uuid) AS gpus, hours(sum(held_ns)) AS gpu_time,
    hours(sum(held_ns) FILTER (NOT is_reserved)) AS held, hours(sum(used_ns)) AS used,
    round(sum(energy_static_uj + energy_dynamic_uj) / 3.6e12, 4) AS kwh
FROM account
GROUP BY gpu_model, hour
ORDER BY gpu_model, hour;

-- Which workloads hold GPUs and do not use them?
CREATE OR REPLACE VIEW held_but_idle AS
SELECT
    tenant, workload, currency, count(DISTINCT gpu_uuid) AS gpus,
    make_timestamp(epoch_us(min(quarter_hour))) AS first, make_timestamp(epoch_us(max(quarter_hour))) AS last,
    hours(sum(held_ns)) AS held, hours(sum(idle_ns)) AS idle,
    round(100 * sum(idle_ns) / nullif(sum(within_ns + lent_ns + idle_ns), 0), 1) AS idle_percent, money(sum(cost)) AS cost
FROM account
WHERE NOT is_reserved
GROUP BY tenant, workload, currency
HAVING sum(idle_ns) > 0
ORDER BY sum(idle_ns) DESC, tenant, workload;

-- Does the money add up? The cost of all tenants and remainders is the time of all GPUs at their rates, and the energy.
CREATE OR REPLACE VIEW reconciliation AS
SELECT
    currency, hours(sum(held_ns)) AS gpu_time, money(sum(cost)) AS tenants,
    money(sum(CAST(held_ns AS HUGEINT) * coalesce(gpu_nano_per_hour, 0)) + sum(CAST(energy_cost AS HUGEINT))) AS gpus_and_energy,
    sum(CAST(cost AS HUGEINT) - CAST(held_ns AS HUGEINT) * coalesce(gpu_nano_per_hour, 0) - CAST(energy_cost AS HUGEINT)) AS difference
FROM account
GROUP BY currency
ORDER BY currency;
