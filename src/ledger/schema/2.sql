-- Schema version 2: the tables that agents added to ledgers of version 1 when they opened them, so some or all of them
-- may be there. The column holder.tenant (TEXT: the tenant of the holder) and its index are added in Rust.

-- Where each GPU is that this node had once, as last told. A GPU without a row
-- was present when it was last seen.
CREATE TABLE IF NOT EXISTS expected (
    gpu         INTEGER PRIMARY KEY REFERENCES gpu (id),
    pci_bus_id  TEXT NOT NULL,    -- where it sat, as the kernel writes it; empty: not known
    whereabouts TEXT NOT NULL,    -- present, lost, gone, guest, replaced, forgotten
    since_ns    INTEGER NOT NULL  -- account time
) STRICT;

-- What only a reset of a GPU ends, as last told. It holds in the boot in which it
-- was stored, and until the driver's module is another one or the energy counter has gone back.
CREATE TABLE IF NOT EXISTS latch (
    gpu               INTEGER NOT NULL REFERENCES gpu (id),
    rule              TEXT NOT NULL,    -- rule of the verdict; __unavailable__: the GPU's time is unavailable
    since_ns          INTEGER NOT NULL, -- wall clock
    count             INTEGER NOT NULL, -- how often the driver noticed it; 0 where it gives no such notice
    xids              TEXT NOT NULL,    -- JSON: XID -> [how often, GPU instance of the last that named one]
    boot_id           TEXT NOT NULL,
    module            INTEGER,          -- number of the loaded driver module; NULL: not known
    energy_counter_uj INTEGER,          -- the driver's energy counter then; NULL: not read
    PRIMARY KEY (gpu, rule)
) STRICT, WITHOUT ROWID;

-- The node whose account this is, as its agent was last configured; one row.
CREATE TABLE IF NOT EXISTS node (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    name      TEXT NOT NULL,    -- node.name, or the host name; empty: unknown
    cluster   TEXT,             -- node.cluster; NULL: none
    simulated INTEGER NOT NULL  -- 1: a demo or a replay once wrote here
) STRICT;

-- The boot whose offset is not fixed yet, because its wall clock cannot be trusted. Spans of it are stored on a
-- provisional axis; the transaction that fixes the offset moves them and enters the boot in `boot`.
CREATE TABLE IF NOT EXISTS provisional_boot (
    boot_id   TEXT PRIMARY KEY,  -- /proc/sys/kernel/random/boot_id
    offset_ns INTEGER NOT NULL,  -- provisional account time - time since boot
    since_ns  INTEGER NOT NULL   -- end of what was committed before this boot; 0: the ledger is new
) STRICT, WITHOUT ROWID;

-- XID errors of each GPU over all time, as the metrics publish them.
CREATE TABLE IF NOT EXISTS xid_sum (
    gpu      INTEGER PRIMARY KEY REFERENCES gpu (id),
    since_ns INTEGER,       -- account time at which the GPU was forgotten and counting began again; NULL: never
    actions  TEXT NOT NULL, -- JSON: recommended action -> count
    codes    TEXT NOT NULL, -- JSON: XID -> count, wall clock of the last one, what each source reported lately
    boot_id  TEXT NOT NULL  -- the boot of the times since boot in codes
) STRICT;
