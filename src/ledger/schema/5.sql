-- Schema version 5: account rows know no price. A bill multiplies their time by the rates in force, each of which has a
-- begin and an end; a version of the price becomes a rate that ends where nothing was charged from then on.

CREATE TABLE rate (
    id                INTEGER PRIMARY KEY, -- in the order in which they were recorded
    selector          TEXT NOT NULL,       -- JSON: patterns of the GPUs that it prices (uuid, node, model)
    given_from_ns     INTEGER,             -- the begin that the operator gave; NULL: none
    begin_ns          INTEGER NOT NULL,    -- when it is first in force
    end_ns            INTEGER,             -- when it is no longer in force; NULL: while the operator's book has it
    currency          TEXT NOT NULL,       -- ISO 4217 or the operator's word
    class             TEXT NOT NULL,       -- on_demand, spot, committed, ...
    nano_per_gpu_hour INTEGER NOT NULL,    -- billionths of the currency per GPU-hour
    derivation        TEXT,                -- how it follows from what the operator gave; NULL: it was given itself
    recorded_ns       INTEGER NOT NULL     -- when it was recorded
) STRICT;

INSERT INTO rate
    SELECT id, '{}', nullif(from_ns, 0), from_ns,
           (SELECT min(later.from_ns) FROM price later
            WHERE later.from_ns > price.from_ns AND later.nano_per_gpu_hour IS NULL),
           currency, class, nano_per_gpu_hour, NULL, recorded_ns
    FROM price WHERE nano_per_gpu_hour IS NOT NULL ORDER BY from_ns;

-- Before this time prices are final: a rate that is recorded later does not begin earlier.
ALTER TABLE ledger ADD COLUMN covered_until_ns INTEGER NOT NULL DEFAULT 0;
UPDATE ledger SET covered_until_ns = coalesce((SELECT max(minute_ns) + 60000000000 FROM minute), 0);

CREATE TABLE gpu_5 (
    id                INTEGER PRIMARY KEY,
    uuid              TEXT NOT NULL UNIQUE,
    gpu_index         INTEGER NOT NULL,           -- NVML index at the last first sight; for people
    model             TEXT NOT NULL,
    first_seen_ns     INTEGER NOT NULL,           -- where its account begins
    settled_until_ns  INTEGER NOT NULL,           -- where its account ends; raw spans continue from here
    slot_ns           INTEGER NOT NULL DEFAULT 0, -- GPU time settled since its account began
    carry             TEXT NOT NULL DEFAULT '{}', -- JSON: tree node -> holder -> owed, 2^-32 ns
    weights           TEXT NOT NULL DEFAULT '{}', -- JSON: holder -> weight of the last window
    holdings          TEXT NOT NULL DEFAULT '[]', -- JSON: holdings at the end of the last span
    energy_counter_uj INTEGER                     -- the driver's energy counter at the last span; NULL: not
                                                  -- read in this boot
) STRICT;

CREATE TABLE minute_5 (
    minute_ns INTEGER NOT NULL,   -- the minute's beginning
    gpu       INTEGER NOT NULL REFERENCES gpu (id),
    slot_ns   INTEGER NOT NULL,   -- GPU time settled in it; 60 s, less in the first and the open one
    coarse    INTEGER NOT NULL,   -- 1: windows were added together while the disk was stuck
    PRIMARY KEY (minute_ns, gpu)
) STRICT, WITHOUT ROWID;

INSERT INTO gpu_5
    SELECT id, uuid, gpu_index, model, first_seen_ns, settled_until_ns, slot_ns, carry, weights, holdings,
           energy_counter_uj
    FROM gpu;
INSERT INTO minute_5 SELECT minute_ns, gpu, slot_ns, coarse FROM minute;

DROP TABLE minute;
DROP TABLE gpu;
DROP TABLE price;
ALTER TABLE gpu_5 RENAME TO gpu;
ALTER TABLE minute_5 RENAME TO minute;

-- Beside _units and _nanos: what is left of a cost, in parts of a billionth of which 3.6e12 make one.
ALTER TABLE cost ADD COLUMN held_rest INTEGER NOT NULL DEFAULT 0;
ALTER TABLE cost ADD COLUMN used_rest INTEGER NOT NULL DEFAULT 0;
