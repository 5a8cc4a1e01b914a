-- The ledger of one node, schema version 13 (PRAGMA user_version). Any sqlite3 opens it; only its agent writes.
--
-- Units are in the names: _ns nanoseconds (times: since 1970-01-01T00:00:00Z on the account's axis, see boot; all else: spans
-- or GPU time), _uj microjoules. An amount of money is three columns: _units whole units of the currency, _nanos the
-- billionths beside them (0 to 999999999), _rest what is left in parts of a billionth of which 3.6e12 make one. One column of
-- 64 bits would end at 9.2e9 units, which a year of GPUs reaches in some currencies, and SQL can still add these.

-- The ledger itself; one row.
CREATE TABLE ledger (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    created_ns       INTEGER NOT NULL,           -- when it was created: the start time of every counter in it
    last_commit_ns   INTEGER NOT NULL,           -- time of the last batch; account time never falls before it
    covered_until_ns INTEGER NOT NULL DEFAULT 0, -- prices before it are final: a rate that is recorded later begins later
    uid              TEXT NOT NULL DEFAULT '',   -- random, and another one if the file is found on another machine
    machine_id       TEXT NOT NULL DEFAULT '',   -- /etc/machine-id; empty: unknown
    exports_since_ns INTEGER NOT NULL DEFAULT 0, -- time before it belongs to the ledger from which this one was copied
    rolled_until_ns  INTEGER NOT NULL DEFAULT 0, -- rows of minute, account and remark before it are sums of quarter hours
    deleted_until_ns INTEGER NOT NULL DEFAULT 0  -- rows before it are deleted
) STRICT;
-- A sum's minute_ns is the begin of its quarter hour of UTC, inside which no rate and no tenant rule begins. Grade, method
-- and coarse are the worst of its minutes, and texts of remarks are kept once. Sums of the quarter hour that ends at
-- rolled_until_ns may be incomplete: then the rest is still in its minutes.

-- The node whose account this is, as its agent was last configured; one row.
CREATE TABLE node (
    id                INTEGER PRIMARY KEY CHECK (id = 1),
    name              TEXT NOT NULL,              -- node.name, or the host name; empty: unknown
    cluster           TEXT,                       -- node.cluster; NULL: none
    simulated         INTEGER NOT NULL,           -- 1: a demo or a replay once wrote here
    pool              TEXT,                       -- node pool; NULL: unknown
    instance_type     TEXT,                       -- NULL: unknown
    spot              INTEGER,                    -- 1: may be taken away any time; NULL: unknown
    since_ns          INTEGER NOT NULL DEFAULT 0, -- the node has this name, pool, instance type and spot since then
    how_held          TEXT,                       -- how GPUs are held that no grant names; presence, nothing_grants: by presence;
                                                  -- grants, standing, kubelet, slurm, scheduled, was_off: by grants alone;
                                                  -- NULL: not known
    how_held_since_ns INTEGER                     -- since when; a bill that begins earlier does not say it
) STRICT;

-- What the node was before.
CREATE TABLE past_node (
    until_ns      INTEGER PRIMARY KEY, -- when it was last so
    name          TEXT NOT NULL,
    cluster       TEXT,
    pool          TEXT,
    instance_type TEXT,
    spot          INTEGER
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

-- GPUs that have been seen, and where each one's account stands.
CREATE TABLE gpu (
    id                INTEGER PRIMARY KEY,
    uuid              TEXT NOT NULL UNIQUE,
    gpu_index         INTEGER NOT NULL,           -- NVML index when it was last registered; for people
    model             TEXT NOT NULL,
    memory_bytes      INTEGER,                    -- the host's where it shares that; NULL: unknown
    first_seen_ns     INTEGER NOT NULL,           -- where its account begins
    settled_until_ns  INTEGER NOT NULL,           -- where its account ends; raw spans continue from here
    slot_ns           INTEGER NOT NULL DEFAULT 0, -- GPU time settled since its account began
    carry             TEXT NOT NULL DEFAULT '{}', -- JSON: tree node -> holder -> owed, 2^-32 ns
    weights           TEXT NOT NULL DEFAULT '{}', -- JSON: holder -> weight of the last window
    holdings          TEXT NOT NULL DEFAULT '[]', -- JSON: holdings at the end of the last span
    evidence          TEXT NOT NULL DEFAULT '{}', -- JSON: shapes of the open hour, and runs that have not ended
    energy_counter_uj INTEGER                     -- the driver's energy counter at the last span; NULL: not read in this boot
) STRICT;

-- Where each GPU is that this node had once, as last reported. A GPU without a row was present when it was last seen.
CREATE TABLE expected (
    gpu        INTEGER PRIMARY KEY REFERENCES gpu (id),
    pci_bus_id TEXT NOT NULL,    -- where it sat, as the kernel writes it; empty: not known
    attachment TEXT NOT NULL,    -- present, lost, gone, guest, replaced, forgotten
    since_ns   INTEGER NOT NULL  -- account time
) STRICT;

-- Faults of each GPU that only a reset ends, and the most NVLinks that were up. A row holds in the boot in which it was stored,
-- and until another driver module is loaded or the energy counter has gone back.
CREATE TABLE sticky_fault (
    gpu     INTEGER PRIMARY KEY REFERENCES gpu (id),
    boot_id TEXT NOT NULL,
    faults  TEXT NOT NULL  -- JSON: rules of the verdict with their XIDs, since when the GPU's time is unavailable, most links up,
                           -- and the driver module and energy counter of then
) STRICT;

-- XID errors of each GPU over all time, as the metrics publish them.
CREATE TABLE xid_sum (
    gpu      INTEGER PRIMARY KEY REFERENCES gpu (id),
    since_ns INTEGER,       -- account time at which the GPU was forgotten and counting began again; NULL: never
    actions  TEXT NOT NULL, -- JSON: recommended action -> count
    codes    TEXT NOT NULL, -- JSON: XID -> count, wall clock of the last one, what each source reported lately
    boot_id  TEXT NOT NULL  -- the boot of the times since boot in codes
) STRICT;

-- Faults of GPUs over time.
CREATE TABLE incident (
    from_ns INTEGER NOT NULL, -- account time
    to_ns   INTEGER,          -- NULL: it goes on
    gpu     INTEGER NOT NULL REFERENCES gpu (id),
    kind    TEXT NOT NULL,    -- the rule of the health verdict that it was a reason of, or xid: an XID, and those of its code that
                              -- followed within 5 minutes each
    code    INTEGER NOT NULL, -- of an XID; 0: none
    PRIMARY KEY (from_ns, gpu, kind, code)
) STRICT, WITHOUT ROWID;

-- Holders: who held or used a GPU, a row for each version of the facts that tenant rules read.
CREATE TABLE holder (
    id            INTEGER PRIMARY KEY,
    name          TEXT NOT NULL,    -- workload id, or a remainder such as __unallocated__; the tenant __unattributed__ has a
                                    -- remainder per reason, __unattributed__/pod ...
    version       INTEGER NOT NULL, -- tells versions of one name apart; the order is that of id
    kind          TEXT NOT NULL,    -- unit, user, remainder, ...
    facts         TEXT NOT NULL,    -- JSON; what was not known yet is added, nothing else changes
    first_seen_ns INTEGER NOT NULL, -- when this version was first committed, account time
    tenant        TEXT NOT NULL,    -- tenant to whose counters this version is added; a bill derives it from history
    UNIQUE (name, version)
) STRICT;
CREATE INDEX holder_tenant ON holder (tenant);

-- Profiles of MIG instances. Rows name them, since ids of instances are used again.
CREATE TABLE mig_profile (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL,    -- such as 1g.10gb; empty: unknown
    size  INTEGER NOT NULL, -- memory slices of an instance
    total INTEGER NOT NULL, -- memory slices of the whole GPU
    UNIQUE (name, size, total)
) STRICT;

-- Raw integrals of spans that are not settled yet: what a restart settles from. One of each GPU and beginning, in the order in
-- which they came: rows that are only ever appended fill their pages, and a commit writes fewer.
CREATE TABLE raw (
    gpu     INTEGER NOT NULL REFERENCES gpu (id),
    from_ns INTEGER NOT NULL,
    to_ns   INTEGER NOT NULL,
    span    TEXT NOT NULL             -- JSON
) STRICT;

-- GPU time of each minute. Neither these rows nor those of account know a price: a bill multiplies them by the rates in force.
CREATE TABLE minute (
    minute_ns INTEGER NOT NULL,   -- the minute's beginning
    gpu       INTEGER NOT NULL REFERENCES gpu (id),
    slot_ns   INTEGER NOT NULL,   -- GPU time settled in it; 60 s, less in the first and the open one
    coarse    INTEGER NOT NULL,   -- 1: windows were added together while the disk was stuck
    PRIMARY KEY (minute_ns, gpu)
) STRICT, WITHOUT ROWID;

-- What each minute's account says of each holder. Per minute and GPU the five parts of all holders sum to minute.slot_ns.
CREATE TABLE account (
    minute_ns           INTEGER NOT NULL,
    gpu                 INTEGER NOT NULL REFERENCES gpu (id),
    holder              INTEGER NOT NULL REFERENCES holder (id),
    gpu_instance        INTEGER NOT NULL, -- -1: a whole GPU, and time of a MIG GPU that is no instance's
    profile             INTEGER NOT NULL, -- key in mig_profile; 0: no instance, or unknown
    within_ns           INTEGER NOT NULL, -- held, used by those whom the holding covers
    lent_ns             INTEGER NOT NULL, -- held, idle, used by others
    idle_ns             INTEGER NOT NULL, -- held, idle, used by nobody
    unmeasured_ns       INTEGER NOT NULL, -- held while activity could not be known
    unavailable_ns      INTEGER NOT NULL, -- held while the GPU was lost or broken
    used_within_ns      INTEGER NOT NULL, -- used within a holding that covers the user
    used_beyond_ns      INTEGER NOT NULL, -- used above the own held part
    used_outside_ns     INTEGER NOT NULL, -- used without holding, where others hold
    used_unheld_ns      INTEGER NOT NULL, -- used where nobody holds
    energy_static_uj    INTEGER NOT NULL, -- share of the idle floor
    energy_dynamic_uj   INTEGER NOT NULL, -- share of the rest
    memory_byte_seconds INTEGER NOT NULL, -- resident memory x time
    energy_waiting_uj   INTEGER NOT NULL, -- energy above idle power while its processes waited
    measured_ns         INTEGER NOT NULL, -- the part of used whose split was measured
    memory_peak_kib     INTEGER NOT NULL, -- most resident memory of a tick, in KiB; 0: none was reported
    grade               INTEGER NOT NULL, -- worst: 0 measured, 1 split_by_activity, 2 split_by_holding, 3 split_by_memory,
                                          -- 4 split_equally, 5 unknown
    method              INTEGER NOT NULL, -- worst: 0 observed, 1 bridged
    source              INTEGER NOT NULL, -- set of bits, meters of activity: 1 gpm, 2 utilization, 4 none, 8 samples
    granted_by          INTEGER NOT NULL, -- set of bits, by whom what it held was granted: 1 standing, 2 kubernetes, 4 slurm,
                                          -- 8 presence; 0: it held nothing
    PRIMARY KEY (minute_ns, gpu, holder, gpu_instance, profile)
) STRICT, WITHOUT ROWID;

-- How busy holders kept their slots while they alone used them: how long a share was in each bin. Rows of hours become rows of
-- days. Of a row all times sum to that in which the holder held or was present; it is time of the slot, not its weight in GPU time.
CREATE TABLE shape (
    hours         INTEGER NOT NULL, -- 1: an hour, 24: a day
    begin_ns      INTEGER NOT NULL, -- its beginning
    gpu           INTEGER NOT NULL REFERENCES gpu (id),
    gpu_instance  INTEGER NOT NULL, -- -1: a whole GPU
    holder        INTEGER NOT NULL REFERENCES holder (id),
    series        INTEGER NOT NULL, -- the share: 0 of time busy, by any meter; from GPM: 1 of multiprocessors in use, 2 of time of
                                    -- the tensor pipes, 3 of the FP64 pipe, 4 of memory bandwidth; no row where it is not known
    from_0_ns     INTEGER NOT NULL, -- from 0 % to below 1 %
    from_1_ns     INTEGER NOT NULL, -- from 1 % to below 5 %
    from_5_ns     INTEGER NOT NULL, -- and so on
    from_10_ns    INTEGER NOT NULL,
    from_20_ns    INTEGER NOT NULL,
    from_30_ns    INTEGER NOT NULL,
    from_40_ns    INTEGER NOT NULL,
    from_50_ns    INTEGER NOT NULL,
    from_60_ns    INTEGER NOT NULL,
    from_70_ns    INTEGER NOT NULL,
    from_80_ns    INTEGER NOT NULL,
    from_90_ns    INTEGER NOT NULL, -- from 90 % to 100 %
    shared_ns     INTEGER NOT NULL, -- others used the slot too
    unknown_ns    INTEGER NOT NULL, -- the share was not known
    PRIMARY KEY (hours, begin_ns, gpu, gpu_instance, holder, series)
) STRICT, WITHOUT ROWID;

-- Runs that have ended: of a job, a pod, or any other workload, on one slot. One of several GPUs has a row for each.
CREATE TABLE run (
    end_ns              INTEGER NOT NULL, -- when it held or was present last
    gpu                 INTEGER NOT NULL REFERENCES gpu (id),
    gpu_instance        INTEGER NOT NULL,
    holder              INTEGER NOT NULL REFERENCES holder (id), -- the workload, or a part of it where only parts held and used
    name                TEXT NOT NULL,    -- that all runs of a recurring workload have
    begin_ns            INTEGER NOT NULL,
    first_use_ns        INTEGER,          -- when it was first in use; NULL: never
    last_use_ns         INTEGER,          -- end of the last use; from then to end_ns it was idle
    idle_1m             INTEGER NOT NULL, -- stretches without use between two uses, of 1 to 5 minutes: how many
    idle_1m_ns          INTEGER NOT NULL, -- and how long together
    idle_5m             INTEGER NOT NULL, -- of 5 to 15 minutes, and so on
    idle_5m_ns          INTEGER NOT NULL,
    idle_15m            INTEGER NOT NULL,
    idle_15m_ns         INTEGER NOT NULL,
    idle_1h             INTEGER NOT NULL,
    idle_1h_ns          INTEGER NOT NULL,
    idle_4h             INTEGER NOT NULL,
    idle_4h_ns          INTEGER NOT NULL,
    idle_12h            INTEGER NOT NULL,
    idle_12h_ns         INTEGER NOT NULL,
    idle_24h            INTEGER NOT NULL,
    idle_24h_ns         INTEGER NOT NULL,
    within_ns           INTEGER NOT NULL, -- from here on the sums of its rows of account
    lent_ns             INTEGER NOT NULL,
    idle_ns             INTEGER NOT NULL,
    unmeasured_ns       INTEGER NOT NULL,
    unavailable_ns      INTEGER NOT NULL,
    used_within_ns      INTEGER NOT NULL,
    used_beyond_ns      INTEGER NOT NULL,
    used_outside_ns     INTEGER NOT NULL,
    used_unheld_ns      INTEGER NOT NULL,
    energy_static_uj    INTEGER NOT NULL,
    energy_dynamic_uj   INTEGER NOT NULL,
    memory_byte_seconds INTEGER NOT NULL,
    energy_waiting_uj   INTEGER NOT NULL,
    measured_ns         INTEGER NOT NULL,
    memory_peak_kib     INTEGER NOT NULL,
    PRIMARY KEY (end_ns, gpu, gpu_instance, holder)
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
    gpu_instance      INTEGER NOT NULL,
    born_ns           INTEGER NOT NULL, -- time of the batch in which it was first above zero
    within_ns         INTEGER NOT NULL,
    lent_ns           INTEGER NOT NULL,
    idle_ns           INTEGER NOT NULL,
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

-- Money over all time at the prices then in force, never restated; an estimate, the bill counts.
CREATE TABLE cost (
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
    held_rest    INTEGER NOT NULL DEFAULT 0,
    used_rest    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (gpu, holder, gpu_instance, currency, class)
) STRICT, WITHOUT ROWID;

-- What the operator decided, each entry with the time in which it is in force: rates, terms of tenants, and versions of the tenant
-- rules. What was recorded stays; only its end is added.
CREATE TABLE history (
    kind             TEXT NOT NULL,    -- rate, terms, rules
    id               INTEGER NOT NULL, -- in the order in which those of a kind were recorded
    entry            TEXT NOT NULL,    -- JSON. A rate: what it is of (kind), patterns of the GPUs that it prices (selector), price in
                                       -- billionths of its currency, or nanograms of CO2e, per unit (nano), and how it follows from
                                       -- what the operator gave (derivation); terms: tenant or pattern, basis, discount in
                                       -- billionths, use outside; rules: all in order, attributes and budgets of tenants. from: the
                                       -- begin that the operator gave
    begin_ns         INTEGER NOT NULL, -- when it is first in force
    end_ns           INTEGER,          -- when it is no longer in force; NULL: while the configuration has it
    recorded_ns      INTEGER NOT NULL, -- when it was recorded
    covered_until_ns INTEGER NOT NULL, -- ledger.covered_until_ns then: it changes nothing before
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- Statements and credits. Their documents lie in a directory of the operator's; a period that is closed here has final prices
-- (ledger.covered_until_ns).
CREATE TABLE statement (
    id        INTEGER PRIMARY KEY, -- in the order in which they were recorded
    kind      TEXT NOT NULL,       -- statement, or credit
    from_ns   INTEGER NOT NULL,    -- the period of the statement; of a credit, that of the statement that it is for
    to_ns     INTEGER NOT NULL,
    closed_by TEXT NOT NULL,       -- who closed the period or gave the credit
    closed_ns INTEGER NOT NULL,    -- when, account time
    number    TEXT,                -- number of the document; NULL: it is not written yet
    digest    TEXT                 -- its digest, sha256:...
) STRICT;
