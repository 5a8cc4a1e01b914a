-- Schema version 7: rates of MIG instances, energy and emissions, terms of tenants, and rows that say of which profile
-- their MIG instance was, since ids of instances are used again.

ALTER TABLE rate RENAME COLUMN nano_per_gpu_hour TO nano_per_unit; -- billionths of the currency, or nanograms of CO2e
ALTER TABLE rate ADD COLUMN unit TEXT NOT NULL DEFAULT 'gpu_hour'; -- gpu_hour, instance_hour, kwh, carbon_kwh

CREATE TABLE terms (
    id            INTEGER PRIMARY KEY, -- in the order in which they were recorded
    terms         TEXT NOT NULL,       -- JSON: tenant or pattern, basis, discount in billionths, use outside
    given_from_ns INTEGER,             -- the begin that the operator gave; NULL: none
    begin_ns      INTEGER NOT NULL,    -- when they are first in force
    end_ns        INTEGER,             -- when they are no longer in force; NULL: while the configuration has them
    recorded_ns   INTEGER NOT NULL     -- when they were recorded
) STRICT;

ALTER TABLE tenant_rules ADD COLUMN covered_until_ns INTEGER NOT NULL DEFAULT 0; -- its rules hold at no time before

ALTER TABLE node ADD COLUMN pool TEXT;          -- node pool; NULL: unknown
ALTER TABLE node ADD COLUMN instance_type TEXT; -- NULL: unknown
ALTER TABLE node ADD COLUMN spot INTEGER;       -- 1: may be taken away any time; NULL: unknown
ALTER TABLE node ADD COLUMN since_ns INTEGER NOT NULL DEFAULT 0; -- the node has this name, pool, instance type and spot since then

-- Profiles of MIG instances.
CREATE TABLE mig_profile (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL,    -- such as 1g.10gb; empty: unknown
    size  INTEGER NOT NULL, -- memory slices of an instance
    total INTEGER NOT NULL, -- memory slices of the whole GPU
    UNIQUE (name, size, total)
) STRICT;

CREATE TABLE account_7 (
    minute_ns           INTEGER NOT NULL,
    gpu                 INTEGER NOT NULL REFERENCES gpu (id),
    holder              INTEGER NOT NULL REFERENCES holder (id),
    gpu_instance        INTEGER NOT NULL, -- -1: a whole GPU, and time of a MIG GPU that is no instance's
    profile             INTEGER NOT NULL, -- key in mig_profile; 0: no instance, or unknown
    within_ns           INTEGER NOT NULL, -- held, used by those whom the holding covers
    lent_ns             INTEGER NOT NULL, -- held, idle, used by others
    waste_ns            INTEGER NOT NULL, -- held, idle, used by nobody
    unmeasured_ns       INTEGER NOT NULL, -- held while activity could not be known
    unavailable_ns      INTEGER NOT NULL, -- held while the GPU was lost or broken
    used_within_ns      INTEGER NOT NULL, -- used within a holding that covers the user
    used_beyond_ns      INTEGER NOT NULL, -- used above the own held part
    used_outside_ns     INTEGER NOT NULL, -- used without holding, where others hold
    used_unheld_ns      INTEGER NOT NULL, -- used where nobody holds
    energy_static_uj    INTEGER NOT NULL, -- share of the idle floor
    energy_dynamic_uj   INTEGER NOT NULL, -- share of the rest
    memory_byte_seconds INTEGER NOT NULL, -- resident memory x time
    measured_ns         INTEGER NOT NULL, -- the part of used whose split was measured
    grade               INTEGER NOT NULL, -- worst: 0 measured, 1 split_by_activity, 2 split_by_holding,
                                          -- 3 split_by_memory, 4 split_equally, 5 unknown
    method              INTEGER NOT NULL, -- worst: 0 observed, 1 bridged
    source              INTEGER NOT NULL, -- worst meter of activity: 0 gpm, 1 utilization, 2 none, 3 samples
    PRIMARY KEY (minute_ns, gpu, holder, gpu_instance, profile)
) STRICT, WITHOUT ROWID;

INSERT INTO account_7
    SELECT minute_ns, gpu, holder, gpu_instance, 0, within_ns, lent_ns, waste_ns, unmeasured_ns, unavailable_ns,
           used_within_ns, used_beyond_ns, used_outside_ns, used_unheld_ns, energy_static_uj, energy_dynamic_uj,
           memory_byte_seconds, measured_ns, grade, method, source
    FROM account;

DROP TABLE account;
ALTER TABLE account_7 RENAME TO account;
