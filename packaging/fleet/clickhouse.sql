-- Views over a directory of exports (ledger.export.directory), tested with ClickHouse 26.9 as chdb embeds it in Python; docs/sql.md
-- shows each with its answer.
--
-- Sums are of all days in the directory; a condition on `date` in a query over `account` selects some. A bill over the same
-- files (gpumeter bill --exports) also settles GPUs that two ledgers account for at one time, which no view here does.

-- Which directory? In a bucket: s3('https://…/cluster=*/date=*/ledger=*/day.parquet', 'Parquet').
CREATE OR REPLACE VIEW exported_row AS
SELECT *, _path AS path, _time AS changed, toDate(quarter_hour, 'UTC') AS date
FROM file('/var/lib/gpumeter/exports/cluster=*/date=*/ledger=*/day.parquet', 'Parquet')
SETTINGS schema_inference_mode = 'union', use_hive_partitioning = 0;

-- Money: 3.6e12ths of a billionth, cut after nine places.
CREATE OR REPLACE FUNCTION money AS exact -> toDecimal128(intDiv(toInt128(exact), 3600000000000), 9) / 1000000000;

-- A fleet's nanoseconds of a month do not fit into 64 bits, which sum() would keep.
CREATE OR REPLACE FUNCTION total AS amount -> sum(toInt128(amount));

CREATE OR REPLACE FUNCTION hours AS ns -> round(ns / 3.6e12, 4);

-- Which files count? Of a ledger's day the newest, which has most of the day: a node that changed its cluster may have left a
-- file in the old one.
CREATE OR REPLACE VIEW newest_file AS
SELECT argMax(path, (until, held_ns, changed)) AS path
FROM (
    SELECT
        ledger, date, path, max(quarter_hour) AS until,
        sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns) AS held_ns, max(exported_row.changed) AS changed
    FROM exported_row
    GROUP BY ledger, date, path
)
GROUP BY ledger, date;

-- What was accounted for? A row per quarter hour, GPU, slot and holder.
CREATE OR REPLACE VIEW account AS
SELECT
    * EXCEPT (path, changed),
    startsWith(assumeNotNull(tenant), '__') AS is_reserved,
    within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns AS held_ns,
    used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns AS used_ns
FROM exported_row
WHERE path IN (SELECT path FROM newest_file);

-- What does each tenant owe? Rows without currency are time without a price.
CREATE OR REPLACE VIEW bill_by_tenant AS
SELECT
    tenant, currency,
    hours(total(held_ns)) AS held, hours(total(used_ns)) AS used, hours(total(idle_ns)) AS idle, hours(total(charged_ns)) AS charged,
    round(total(energy_static_uj + energy_dynamic_uj) / 3.6e12, 4) AS kwh,
    sum(account.cost) AS exact_cost, money(sum(account.cost)) AS cost
FROM account
GROUP BY tenant, currency
ORDER BY tenant, currency;

-- Which teams pay for GPU time that nobody uses? Percent are of the time that was measured.
CREATE OR REPLACE VIEW idle_by_team AS
SELECT
    tenant, currency,
    hours(total(held_ns)) AS held, hours(total(unmeasured_ns)) AS unmeasured, hours(total(idle_ns)) AS idle,
    round(100 * total(idle_ns) / nullIf(total(within_ns + lent_ns + idle_ns), 0), 1) AS idle_percent,
    round(sum(toFloat64(cost - energy_cost) * idle_ns / nullIf(charged_ns, 0)) / 3.6e21, 2) AS idle_cost
FROM account
WHERE NOT is_reserved
GROUP BY tenant, currency
ORDER BY idle_cost DESC NULLS LAST, tenant;

-- How busy is each model of GPU over the day? Hours of UTC; gpus is how many there were.
CREATE OR REPLACE VIEW use_by_model_and_hour AS
SELECT
    gpu_model, toStartOfHour(toDateTime(quarter_hour, 'UTC')) AS hour,
    uniqExact(gpu_uuid) AS gpus, hours(total(held_ns)) AS gpu_time,
    hours(sumIf(toInt128(held_ns), NOT is_reserved)) AS held, hours(total(used_ns)) AS used,
    round(total(energy_static_uj + energy_dynamic_uj) / 3.6e12, 4) AS kwh
FROM account
GROUP BY gpu_model, hour
ORDER BY gpu_model, hour;

-- Which workloads hold GPUs and do not use them?
CREATE OR REPLACE VIEW held_but_idle AS
SELECT
    tenant, workload, currency, uniqExact(gpu_uuid) AS gpus,
    toDateTime(min(quarter_hour), 'UTC') AS first, toDateTime(max(quarter_hour), 'UTC') AS last,
    hours(total(held_ns)) AS held, hours(total(idle_ns)) AS idle,
    round(100 * total(idle_ns) / nullIf(total(within_ns + lent_ns + idle_ns), 0), 1) AS idle_percent, money(sum(account.cost)) AS cost
FROM account
WHERE NOT is_reserved
GROUP BY tenant, workload, currency
HAVING total(idle_ns) > 0
ORDER BY total(idle_ns) DESC, tenant, workload;

-- Does the money add up? The cost of all tenants and remainders is the time of all GPUs at their rates, and the energy.
CREATE OR REPLACE VIEW reconciliation AS
SELECT
    currency, hours(total(held_ns)) AS gpu_time, money(sum(cost)) AS tenants,
    money(sum(toInt128(held_ns) * ifNull(gpu_nano_per_hour, 0)) + sum(toInt128(energy_cost))) AS gpus_and_energy,
    sum(toInt128(cost) - toInt128(held_ns) * ifNull(gpu_nano_per_hour, 0) - toInt128(energy_cost)) AS difference
FROM account
GROUP BY currency
ORDER BY currency;
