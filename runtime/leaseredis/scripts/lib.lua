-- The beginning of all scripts. Every key they touch begins with T, the tag of KEYS[1].
local T = KEYS[1]:sub(1, -5)
local call = redis.call

-- A namespace that is gone (FLUSHALL) is created again by the caller; one of another layout is left alone.
local meta = call('HMGET', KEYS[1], 'layout', 'clock', 'shift', 'shifted', 'last', 'slots')
local layout = meta[1]
if not layout and not creating then return redis.error_reply('LEASESHAPE the namespace does not exist') end
if layout and layout ~= '1' then
  return redis.error_reply('LEASELAYOUT the namespace has layout ' .. layout .. ', this program knows layout 1; update leasegen')
end

-- arg reads the arguments one after the other; argn reads a number.
local argi = 0
local function arg() argi = argi + 1; return ARGV[argi] end
local function argn() return tonumber(arg()) end

-- now is the server's clock in µs. It stands still while a script runs, and never goes back: when the clock was
-- set back, by shift at the time shifted, what is to happen at some time would wait for that time to come again. So now goes
-- on from the latest that a heartbeat has noted, and a tenth slower until the clock has caught up.
local reached, shift, shifted = tonumber(meta[2] or 0), tonumber(meta[3] or 0), tonumber(meta[4] or 0)
local clock = call('TIME')
clock = clock[1] * 1000000 + clock[2]
local function of_wall(us) return us + math.max(math.floor(shift - math.max(us - shifted, 0) / 10), 0) end
local now = math.max(of_wall(clock), reached)

-- int writes a number without an exponent: ids and times are above 1e15.
local function int(n) return string.format('%.0f', n) end

-- news wakes feeds: m = messages, o = ownership, s = ownership, because a session came or went, p = parked messages. News that cannot be found
-- by looking is counted, for feeds that the hint does not reach.
local counted = {o = 'ownership', s = 'ownership', p = 'replays'}
local function news(what)
  if counted[what] then call('HINCRBY', KEYS[1], counted[what], 1) end
  call('PUBLISH', T .. 'news', what)
end

-- urgent lets a script write when the server's memory is full, too: after a first write that needs
-- none, none is refused. It is for what keeps ownership and moves cursors, so that what everyone has
-- passed can be trimmed; publishing has to wait.
local function urgent() call('UNLINK', KEYS[2]) end

-- Sessions: "sessions" has their ids by expiry in µs, "s:<id>" what is known of each.
local function alive(session)
  local expires = call('ZSCORE', T .. 'sessions', session)
  return expires and tonumber(expires) > now
end

-- A reader of entries that this server never gave, or lost, has positions that its next messages lie behind.
-- That is noticed when somebody names an id beyond the last one. It is counted, and ends the sessions
-- that were opened before; ids go on above that one.
local function set_back(id)
  call('HSET', KEYS[1], 'last', string.format('%.0f', id))
  call('HINCRBY', KEYS[1], 'setbacks', 1)
end
local function estranged(session)
  local count = call('HGET', KEYS[1], 'setbacks')
  if count and call('HGET', T .. 's:' .. session, 'setbacks') ~= count then
    return redis.error_reply('LEASELOST the server has lost what was stored last: positions are read again')
  end
end
local function must_live(session)
  if not alive(session) then return redis.error_reply('LEASELOST the session is dead or expired') end
  return estranged(session)
end

-- Leases: "l:<consumer>:<resource>". See doc.go for the fields.
local function lease_key(consumer, resource) return T .. 'l:' .. consumer .. ':' .. resource end

-- held returns the key of a lease that session holds with that epoch, or nil. It does not ask
-- whether the session lives: an epoch that no process has raised is current.
local function held(session, consumer, resource, epoch)
  local key = lease_key(consumer, resource)
  local l = call('HMGET', key, 'o', 'e')
  if l[1] == session and l[2] == epoch then return key end
end
