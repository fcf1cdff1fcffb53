-- Extends a session that lives. It can neither create nor revive one.
local session, ttl = arg(), argn()
local dead = must_live(session)
if dead then return dead end
urgent()
call('ZADD', T .. 'sessions', 'XX', int(now + ttl), session)
call('HSET', T .. 's:' .. session, 'beat', int(now))
return 1
