-- Stores progress of leases: session, consumer, the greatest id of this tag that a cursor has
-- passed, number of leases; for each its resource, epoch,
-- seq, and letters that say what follows: c cursor, m mark, t trust (no more follows), and lists,
-- each with its length in front: d done (id), p park (id, lane, attempt, after, error, message), x
-- dead (id, attempt, reason, message). A message that is not sent along is empty. Returns what was
-- refused: {position, 'fenced'}; {position, 'missing', {ids of messages that have to be sent
-- along}}; {position, 'unusable', key, its type}. Leases that are refused are unchanged.
local session, consumer, top, n = arg(), arg(), argn(), argn()
local refused = {}

local function items(what, letter, width)
  if not what:find(letter, 1, true) then return {} end
  local out = {}
  for i = 1, argn() do
    local item = {}
    for k = 1, width do item[k] = arg() end
    out[i] = item
  end
  return out
end

-- unusable names a key that holds something else. It is asked before anything is written.
local function unusable(p, d)
  for key, kind in pairs({
    [p.all] = 'hash', [p.due] = 'zset', [p.resources] = 'zset', [d.all] = 'hash', [d.messages] = 'hash', [d.numbers] = 'zset',
  }) do
    local is = call('TYPE', key).ok
    if is ~= kind and is ~= 'none' then return key, is end
  end
end

-- missing lists the messages that are needed and were not sent along.
local function missing(p, d, park, dead)
  local ids = {}
  local function need(id, body)
    if body == '' and call('HEXISTS', p.all, id) == 0 and call('HEXISTS', d.messages, id) == 0 then ids[#ids + 1] = id end
  end
  for _, m in ipairs(park) do need(m[1], m[6]) end
  for _, m in ipairs(dead) do need(m[1], m[4]) end
  return ids
end

local function store(p, d, done, park, dead)
  for _, m in ipairs(park) do
    local id, attempt, due = m[1], tonumber(m[3]), now + tonumber(m[4])
    local lane, was, _, failed, err, body, since = parked(p, id)
    failed = failed or 0
    if attempt > 0 and failed == 0 then failed = now end
    if lane then
      if not since or attempt > was or err ~= m[5] then since = now end
      set_parked(p, id, lane, attempt, due, failed, m[5], body, since)
    elseif m[6] ~= '' then -- else it is a dead letter by now
      set_aside(p, id, m[2], attempt, due, failed, m[5], m[6])
    end
  end
  for _, m in ipairs(done) do unpark(p, m[1]) end
  for _, m in ipairs(dead) do
    local lane, _, _, failed, _, body = unpark(p, m[1])
    if not lane or failed == 0 then failed = now end
    body = body or m[4]
    if body ~= '' then give_up(d, m[1], tonumber(m[2]), m[3], failed, body) end
  end
  settle_lanes(p)
end

local strange = estranged(session)
if strange then return strange end
if top > (tonumber(call('HGET', KEYS[1], 'last')) or 0) and top < now + 86400000000 then
  set_back(top)
  return estranged(session)
end
urgent()
for i = 1, n do
  local resource, epoch, seq, what = arg(), arg(), arg(), arg()
  local cursor = what:find('c', 1, true) and arg()
  local mark = what:find('m', 1, true) and arg()
  local done, park, dead = items(what, 'd', 1), items(what, 'p', 6), items(what, 'x', 4)
  local key = lease_key(consumer, resource)
  local l = call('HMGET', key, 'o', 'e', 'q', 'mk', 'me')
  local last = tonumber(l[3]) or 0
  if l[1] ~= session or l[2] ~= epoch then
    refused[#refused + 1] = {i, 'fenced'}
  elseif tonumber(seq) > last or seq == '0' and last == 0 then -- else it is repeated, or was overtaken on its way
    local ok = true
    if done[1] or park[1] or dead[1] then
      local p, d = parked_keys(consumer, resource), dead_keys(consumer, resource)
      local bad, is = unusable(p, d)
      local ids = not bad and missing(p, d, park, dead)
      if bad then
        refused[#refused + 1] = {i, 'unusable', bad, is}
      elseif ids[1] then
        refused[#refused + 1] = {i, 'missing', ids}
      else
        store(p, d, done, park, dead)
      end
      ok = not bad and not ids[1]
    end
    if ok then
      if cursor then call('HSET', key, 'q', seq, 'c', cursor) else call('HSET', key, 'q', seq) end
      if mark and mark ~= l[4] then
        call('HSET', key, 'mk', mark, 'me', epoch, 'mc', 1)
      elseif mark and l[5] ~= epoch then -- a repeated call counts once
        call('HINCRBY', key, 'mc', 1)
        call('HSET', key, 'me', epoch)
      elseif not mark and l[4] then
        call('HDEL', key, 'mk', 'me', 'mc')
      end
      if what:find('t', 1, true) then call('HDEL', key, 'su') end
    end
  end
end
return refused
