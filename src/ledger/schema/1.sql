-- The ledger of one node. Any sqlite3 opens it; only its agent writes. Schema version 1 (PRAGMA user_version): the files
-- beside this one say what each later version adds.
--
-- Units are in the names: _ns nanoseconds (times: since 1970-01-01T00:00:00Z on the account's axis, see
-- boot; all else: spans or GPU time), _uj microjoules, _units and _nanos the whole units of a currency and
-- the billionths beside them (0 to 999999999). Two columns because 64-bit nano-units end at 9.2e9 units,
-- which a year of GPUs reaches in some currencies, and because SQL can still add them.

-- One row: the ledger itself.
CREATE TABLE ledger (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    created_ns     INTEGER NOT NULL, -- when it was created: the start time of every counter in it
    last_commit_ns INTEGER NOT NULL  -- the time of the last batch; account time never falls before it
) STRICT;

-- The account's time axis: time since boot + offset, the offset frozen for each boot.
CREATE TABLE boot (
    boot_id       TEXT PRIMARY KEY,  -- /proc/sys/kernel/random/boot_id; empty: unknown, each start is a new boot
    offset_ns     INTEGER NOT NULL,  -- account time - time since boot
    first_seen_ns INTEGER NOT NULL   -- account time when this boot was first seen
) STRICT, WITHOUT ROWID;

-- Steps of the wall clock against the account's axis; they move no account time.
CREATE TABLE clock_step (
    at_ns   INTEGER NOT NULL,        -- when it was noticed, account time
    step_ns INTEGER NOT NULL,        -- wall clock - account time, signed
    PRIMARY KEY (at_ns, step_ns)
) STRICT, WITHOUT ROWID;

-- Versions of the price; a version is never changed once a minute was settled under it.
CREATE TABLE price (
    id                INTEGER PRIMARY KEY,
    from_ns           INTEGER NOT NULL UNIQUE, -- in force from here to the next version; a whole minute
    currency          TEXT,                    -- ISO 4217 or the operator's word; NULL with no price
    class             TEXT,                    -- on_demand, spot, committed, ...; NULL with no price
    nano_per_gpu_hour INTEGER,                 -- billionths of the currency per GPU-hour; NULL: no price
    recorded_ns       INTEGER NOT NULL         -- when the agent learned it
) STRICT;

-- GPUs that have been seen, and where each one's account stands.
CREATE TABLE gpu (
    id                INTEGER PRIMARY KEY,
    uuid              TEXT NOT NULL UNIQUE,
    gpu_index         INTEGER NOT NULL,           -- NVML index at the last first sight; for people
    model             TEXT NOT NULL,
    first_seen_ns     INTEGER NOT NULL,           -- where its account begins
    settled_until_ns  INTEGER NOT NULL,           -- where its account ends; raw spans continue from here
    slot_ns           INTEGER NOT NULL DEFAULT 0, -- GPU time settled since its account began
    price             INTEGER REFERENCES price (id), -- of the last settled minute; NULL: none yet
    price_time_ns     INTEGER NOT NULL DEFAULT 0, -- GPU time settled under that version
    carry             TEXT NOT NULL DEFAULT '{}', -- JSON: tree node -> holder -> owed, 2^-32 ns
    weights           TEXT NOT NULL DEFAULT '{}', -- JSON: holder -> weight of the last window
    holdings          TEXT NOT NULL DEFAULT '[]', -- JSON: holdings at the end of the last span
    energy_counter_uj INTEGER                     -- the driver's energy counter at the last span; NULL: not
                                                  -- read in this boot
) STRICT;

-- Holders: who held or used a GPU, with the facts that tenant rules read.
CREATE TABLE holder (
    id            INTEGER PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE, -- workload id, or a remainder such as __unallocated__; the tenant
                                        -- __unattributed__ has a remainder per reason, __unattributed__/pod ...
    kind          TEXT NOT NULL,        -- unit, user, remainder, ...
    facts         TEXT NOT NULL,        -- JSON, as last observed
    first_seen_ns INTEGER NOT NULL
) STRICT;

-- Raw integrals of spans that are not settled yet: what a restart settles from. One of each GPU and beginning, in the
-- order in which they came: rows that are only ever appended fill their pages, and a commit writes fewer.
CREATE TABLE raw (
    gpu     INTEGER NOT NULL REFERENCES gpu (id),
    from_ns INTEGER NOT NULL,
    to_ns   INTEGER NOT NULL,
    span    TEXT NOT NULL             -- JSON
) STRICT;

-- GPU time of each minute.
CREATE TABLE minute (
    minute_ns     INTEGER NOT NULL,   -- the minute's beginning
    gpu           INTEGER NOT NULL REFERENCES gpu (id),
    slot_ns       INTEGER NOT NULL,   -- GPU time settled in it; 60 s, less in the first and the open one
    price         INTEGER REFERENCES price (id), -- the version in force
    price_time_ns INTEGER NOT NULL,   -- GPU time since the GPU came under that version, this minute included
    coarse        INTEGER NOT NULL,   -- 1: windows were added together while the disk was stuck
    PRIMARY KEY (minute_ns, gpu)
) STRICT, WITHOUT ROWID;

-- What each minute's account says of each holder. Per minute and GPU the five parts of all holders sum to
-- minute.slot_ns.
CREATE TABLE account (
    minute_ns           INTEGER NOT NULL,
    gpu                 INTEGER NOT NULL REFERENCES gpu (id),
    holder              INTEGER NOT NULL REFERENCES holder (id),
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
    source              INTEGER NOT NULL, -- worst meter of activity: 0 gpm, 1 utilization, 2 none
    PRIMARY KEY (minute_ns, gpu, holder)
) STRICT, WITHOUT ROWID;

-- Remarks of settlement, such as conflicts of claims.
CREATE TABLE remark (
    minute_ns INTEGER NOT NULL,
    gpu       INTEGER NOT NULL REFERENCES gpu (id),
    text      TEXT NOT NULL,
    PRIMARY KEY (minute_ns, gpu, text)
) STRICT, WITHOUT ROWID;

-- Sums of account over all time, as the metrics publish them; they outlive the rows.
CREATE TABLE counter (
    gpu               INTEGER NOT NULL REFERENCES gpu (id),
    holder            INTEGER NOT NULL REFERENCES holder (id),
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
    PRIMARY KEY (gpu, holder)
) STRICT, WITHOUT ROWID;

-- Money over all time at the prices then in force, never restated; an estimate, the bill counts.
CREATE TABLE cost (
    gpu        INTEGER NOT NULL REFERENCES gpu (id),
    holder     INTEGER NOT NULL REFERENCES holder (id),
    currency   TEXT NOT NULL,
    class      TEXT NOT NULL,
    born_ns    INTEGER NOT NULL, -- time of the batch in which it began
    held_units INTEGER NOT NULL, -- of what was held
    held_nanos INTEGER NOT NULL,
    used_units INTEGER NOT NULL, -- of what was used
    used_nanos INTEGER NOT NULL,
    PRIMARY KEY (gpu, holder, currency, class)
) STRICT, WITHOUT ROWID;
