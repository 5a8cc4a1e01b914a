-- Schema version 6: versions of the operator's tenant rules. A bill derives the tenant of a row from the version in force
-- at the time of the row; the column holder.tenant is the tenant whose counters the version of the holder is added to.

CREATE TABLE tenant_rules (
    id          INTEGER PRIMARY KEY, -- in the order in which they were recorded
    begin_ns    INTEGER NOT NULL,    -- when it is first in force; it ends where the next one begins
    recorded_ns INTEGER NOT NULL,    -- when it was recorded
    rules       TEXT NOT NULL        -- JSON: the rules in order, and the attributes of tenants
) STRICT;
