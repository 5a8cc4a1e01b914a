-- The node whose account this is, as its agent was last configured; one row.
CREATE TABLE IF NOT EXISTS node (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    name      TEXT NOT NULL,    -- node.name, or the host name; empty: unknown
    cluster   TEXT,             -- node.cluster; NULL: none
    simulated INTEGER NOT NULL  -- 1: a demo or a replay once wrote here
) STRICT;
