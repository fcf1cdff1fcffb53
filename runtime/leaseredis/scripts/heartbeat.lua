-- Extends a session that lives. It can neither create nor revive one. Notes the time, and returns by how much the server's
-- clock was found to be set back (µs).
local session, ttl = arg(), argn()
local dead = must_live(session)
if dead then return dead end
urgent()
call('ZADD', T .. 'sessions', 'XX', int(now + ttl), session)
call('HSET', T .. 's:' .. session, 'beat', int(now))
local back = math.max(reached - of_wall(clock), 0)
if back > 0 then call('HSET', KEYS[1], 'shift', int(reached - clock), 'shifted', int(clock)) end
call('HSET', KEYS[1], 'clock', int(now))
return int(back)
