-- Schema version 8: the identity of a ledger in exports, what its node was before, roll-ups, and the periods
-- that statements have closed.

-- Random, and another one where the file is found on another machine.
ALTER TABLE ledger ADD COLUMN uid TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN machine_id TEXT NOT NULL DEFAULT ''; -- /etc/machine-id; empty: unknown
-- Time before it is of the ledger from which this one was copied, and is not exported.
ALTER TABLE ledger ADD COLUMN exports_since_ns INTEGER NOT NULL DEFAULT 0;

-- What the node was before it was what `node` says.
CREATE TABLE past_node (
    until_ns      INTEGER PRIMARY KEY, -- when it was last so
    name          TEXT NOT NULL,
    cluster       TEXT,
    pool          TEXT,
    instance_type TEXT,
    spot          INTEGER
) STRICT;

-- Retention. Rows of minute, account and remark before rolled_until_ns are sums: their minute_ns is the begin of a quarter
-- hour of UTC, and they hold what its minutes held. A rate that begins inside a quarter hour, as before version 5, divides it.
-- Grade, method and coarse are the worst of them, and texts of remarks are kept once. Sums of the quarter hour that ends at
-- rolled_until_ns may be incomplete: then the rest is still in its minutes. Rows before deleted_until_ns are deleted.

ALTER TABLE ledger ADD COLUMN rolled_until_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN deleted_until_ns INTEGER NOT NULL DEFAULT 0;

-- account.source is a set of bits from here on, of all meters of activity in the row's time: 1 gpm, 2 utilization, 4 none,
-- 8 samples.
UPDATE account SET source = 1 << source;

-- Statements. Their documents lie in a directory of the operator's; a period that is closed here has final prices
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
