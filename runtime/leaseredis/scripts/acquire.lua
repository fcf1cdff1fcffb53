-- Takes up to max free resources: those that were freed first, else in the order of their names.
-- An attempt takes in parts; a part that was carried out before returns what it was granted then.
local session, consumer, attempt, part, max, grace, ttl = arg(), arg(), arg(), argn(), argn(), argn(), argn()
local dead = must_live(session)
if dead then return dead end
urgent()
reap(16)
free_some(consumer, math.max(max, 100))
local held_set, free_set = T .. 'held:' .. consumer .. ':' .. session, T .. 'free:' .. consumer
local mine = attempt .. '/' .. int(part)
local fields = {'o', 'e', 'c', 'su', 'mk', 'mc'}
local parked = call('EXISTS', T .. 'pr:' .. consumer) == 1
local room = 2000 -- lanes in one answer; of a resource with more, 1 stands for them, and they are read page by page

local function grant(resource, epoch, l, suspicion)
  local lanes = {}
  if parked and call('ZSCORE', T .. 'pr:' .. consumer, resource) then
    local due = T .. 'due:' .. consumer .. ':' .. resource
    local n = call('ZCARD', due)
    if n > room then
      lanes = 1
    else
      room = room - n
      lanes = call('ZRANGE', due, 0, -1)
    end
  end
  return {resource, epoch, l[3] or '', suspicion, l[5] or '', tonumber(l[6] or 0), lanes}
end

local grants = {}
local before, n = (call('HGET', T .. 's:' .. session, 'a:' .. consumer) or ''):match('^(.*)/(%d+)$')
local granted = T .. 'granted:' .. consumer .. ':' .. session
if before == attempt and tonumber(n) >= part then
  local some = call('HGET', granted, int(part))
  for _, resource in ipairs(some and cmsgpack.unpack(some) or {}) do
    local l = call('HMGET', lease_key(consumer, resource), 'o', 'e', 'c', 'su', 'mk', 'mc', 'a')
    if l[1] == session and l[7] == mine then
      grants[#grants + 1] = grant(resource, l[2], l, tonumber(l[4] or 0))
    end
  end
  return grants
end
if call('HEXISTS', T .. 'paused', consumer) == 1 then return grants end

local excluded, without, at = {}, #ARGV - argi, int(now)
for i = argi + 1, #ARGV do excluded[ARGV[i]] = true end
local taken, writes, crashed, left, none = {}, {}, {}, {}, {}
-- All is read first: an error at one of them leaves none half taken.
for _, resource in ipairs(call('ZRANGEBYSCORE', free_set, '-inf', at, 'LIMIT', 0, int(max + without))) do
  if #taken == max then break end
  if not excluded[resource] then
    local key = lease_key(consumer, resource)
    local l = call('HMGET', key, unpack(fields))
    local owner, suspicion, above = l[1], tonumber(l[4] or 0), tonumber(l[2] or 0) + 1
    local epoch, blame = above > now and int(above) or at, none
    if owner and owner ~= '' then
      if crashed[owner] == nil then
        crashed[owner] = not alive(owner) and call('HEXISTS', T .. 's:' .. owner, 'replaced') == 0
      end
      if crashed[owner] then
        suspicion = suspicion + 1
        blame = {'su', suspicion}
      end
      left[owner] = left[owner] or {}
      table.insert(left[owner], resource)
    end
    taken[#taken + 1] = resource
    writes[#taken] = {key, epoch, blame}
    grants[#grants + 1] = grant(resource, epoch, l, suspicion)
  end
end
for i, resource in ipairs(taken) do
  local key, epoch, blame = unpack(writes[i])
  call('HSET', key, 'o', session, 'e', epoch, 'q', 0, 'a', mine, 'at', at, unpack(blame))
  if ttl > 0 then
    call('HSET', key, 'x', int(now + ttl))
    call('ZADD', free_set, int(now + ttl + grace), resource)
  end
end
-- An owner let its lease expire, or its end is not noted yet: then this lease is none of what it held.
for owner, resources in pairs(left) do call('SREM', T .. 'held:' .. consumer .. ':' .. owner, unpack(resources)) end
if #taken > 0 then
  call('SADD', held_set, unpack(taken))
  if ttl == 0 then call('ZREM', free_set, unpack(taken)) end
  call('HSET', T .. 's:' .. session, 'a:' .. consumer, mine)
  if before ~= attempt then call('UNLINK', granted) end
  call('HSET', granted, int(part), cmsgpack.pack(taken))
  call('PEXPIRE', granted, 60000) -- longer than it is repeated
end
return grants
