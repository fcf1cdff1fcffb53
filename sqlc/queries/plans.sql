-- How the statements of the rest of a transaction are planned: never by what ANALYZE happened to see.

-- name: Uncompiled :exec
-- They are not compiled (jit): that would take longer than they do, whatever their estimates say.
SELECT set_config('jit', 'off', true);

-- name: AsAsked :exec
-- Nor is there one plan for all that may be asked for: what an argument rules out is no part of the plan.
SELECT set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: Steady :exec
-- Nor do they walk or sort tables where an index gives the rows in their order, and there is one
-- plan, whatever is asked for.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true),
       set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: Impatient :exec
-- The rest of the transaction waits for a lock a tenth of a second at most.
SELECT set_config('lock_timeout', '100ms', true);
