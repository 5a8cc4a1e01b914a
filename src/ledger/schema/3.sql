-- Schema version 3: what is held, used and paid is told apart by MIG instance.
--
-- gpu_instance: id of the GPU instance; -1 for a whole GPU, and for time of a MIG GPU that is no instance's (free and
-- stranded placements, and between two layouts). All that was stored before is of whole GPUs.

CREATE TABLE account_3 (
    minute_ns           INTEGER NOT NULL,
    gpu                 INTEGER NOT NULL REFERENCES gpu (id),
    holder              INTEGER NOT NULL REFERENCES holder (id),
    gpu_instance        INTEGER NOT NULL,
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
    PRIMARY KEY (minute_ns, gpu, holder, gpu_instance)
) STRICT, WITHOUT ROWID;

CREATE TABLE counter_3 (
    gpu               INTEGER NOT NULL REFERENCES gpu (id),
    holder            INTEGER NOT NULL REFERENCES holder (id),
    gpu_instance      INTEGER NOT NULL,
    born_ns           INTEGER NOT NULL, -- time of the batch in which it was first above zero
    within_ns         INTEGER NOT NULL,
    lent_ns           INTEGER NOT NULL,
    waste_ns          INTEGER NOT NULL,
    unmeasured_ns     INTEGER NOT NULL,
    unavailable_ns    INTEGER NOT NULL,
    used_within_ns    INTEGER NOT NULL,
    used_beyond_ns    INTEGER NOT NULL,
    used_outside_ns   INTEGER NOT NULL,
    used_unheld_ns    INTEGER NOT NULL,
    energy_static_uj  INTEGER NOT NULL,
    energy_dynamic_uj INTEGER NOT NULL,
    PRIMARY KEY (gpu, holder, gpu_instance)
) STRICT, WITHOUT ROWID;

CREATE TABLE cost_3 (
    gpu          INTEGER NOT NULL REFERENCES gpu (id),
    holder       INTEGER NOT NULL REFERENCES holder (id),
    gpu_instance INTEGER NOT NULL,
    currency     TEXT NOT NULL,
    class        TEXT NOT NULL,
    born_ns      INTEGER NOT NULL, -- time of the batch in which it began
    held_units   INTEGER NOT NULL, -- of what was held
    held_nanos   INTEGER NOT NULL,
    used_units   INTEGER NOT NULL, -- of what was used
    used_nanos   INTEGER NOT NULL,
    PRIMARY KEY (gpu, holder, gpu_instance, currency, class)
) STRICT, WITHOUT ROWID;

INSERT INTO account_3
    SELECT minute_ns, gpu, holder, -1, within_ns, lent_ns, waste_ns, unmeasured_ns, unavailable_ns, used_within_ns,
           used_beyond_ns, used_outside_ns, used_unheld_ns, energy_static_uj, energy_dynamic_uj, memory_byte_seconds,
           measured_ns, grade, method, source
    FROM account;
INSERT INTO counter_3
    SELECT gpu, holder, -1, born_ns, within_ns, lent_ns, waste_ns, unmeasured_ns, unavailable_ns, used_within_ns,
           used_beyond_ns, used_outside_ns, used_unheld_ns, energy_static_uj, energy_dynamic_uj
    FROM counter;
INSERT INTO cost_3
    SELECT gpu, holder, -1, currency, class, born_ns, held_units, held_nanos, used_units, used_nanos FROM cost;

DROP TABLE account;
DROP TABLE counter;
DROP TABLE cost;
ALTER TABLE account_3 RENAME TO account;
ALTER TABLE counter_3 RENAME TO counter;
ALTER TABLE cost_3 RENAME TO cost;
