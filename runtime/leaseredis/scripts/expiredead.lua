-- Deletes dead letters that are older than they are kept: consumer, how long in µs, limit. Returns
-- how many.
local consumer, keep, limit = arg(), argn(), argn()
local old = call('ZRANGEBYSCORE', T .. 'dead:' .. consumer, '-inf', '(' .. int(now - keep), 'LIMIT', 0, limit)
for _, number in ipairs(old) do drop_dead(consumer, number) end
return #old
