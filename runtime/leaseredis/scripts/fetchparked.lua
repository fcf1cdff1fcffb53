-- Reads due parked messages of resources that a session owns: consumer, session, limits in messages
-- and bytes, the limit in messages of one resource, how many resources to read (0: all), these, and
-- those to leave out. Returns whether the limits cut it short, the time in µs until a lane is due (-1:
-- none waits), and the lanes: {resource, lane, how long it has been due, {id, 1 if it is the
-- last, attempt, message, for how long it has been so, its error}, ...}.
local consumer, session, limit, room, most = arg(), arg(), argn(), argn(), argn()
local resources, held = T .. 'pr:' .. consumer, T .. 'held:' .. consumer .. ':' .. session
local lanes, count, size, more, waits = {}, 0, 0, 0, -1
if call('EXISTS', resources) == 0 then return {more, waits} end
local asked, left_out = {}, {}
for i = 1, argn() do asked[i] = arg() end
for _ = 1, argn() do left_out[arg()] = true end
local here -- messages of the resource that is being read

local function wait_for(at)
  if waits < 0 or at - now < waits then waits = math.max(at - now, 0) end
end

local function full() return count >= limit or size >= room end

-- How large messages are is learnt from those that were read, so that no more are loaded than there is room for.
local page, loaded, bytes = 1, 0, 0
local function next_page()
  page = loaded == 0 and 1 or math.max(math.min(page * 4, 100, math.floor((room - size) / (bytes / loaded + 1))), 1)
  return page
end

local function read_lane(p, lane, since)
  local key, out = p.lanes .. lane, {p.resource, lane, now - since}
  local length, from = call('LLEN', key), 0
  while from < length do
    local n = next_page()
    local ids = call('LRANGE', key, from, from + n - 1)
    for i, packed in ipairs(call('HMGET', p.all, unpack(ids))) do
      if packed then -- else someone else deleted it
        loaded, bytes = loaded + 1, bytes + #packed
        local _, attempt, due, _, err, body, since = cmsgpack.unpack(packed)
        if due > now then
          wait_for(due)
          return out
        end
        if count > 0 and size + #body > room then size = room end
        if full() or here >= most then
          more = 1
          return out
        end
        count, here, size = count + 1, here + 1, size + #body
        out[#out + 1] = {ids[i], from + i == length and 1 or 0, attempt, body, int(now - (since or now)), err}
      end
    end
    from = from + n
  end
  return out
end

local function read_resource(resource)
  if left_out[resource] then return end
  local p = parked_keys(consumer, resource)
  here = 0
  local later = call('ZRANGEBYSCORE', p.due, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if later[2] then wait_for(tonumber(later[2])) end
  local due = call('ZRANGEBYSCORE', p.due, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, limit + 1)
  for i = 1, #due, 2 do
    if full() or here >= most then
      more = 1
      return
    end
    local lane = read_lane(p, due[i], tonumber(due[i + 1]))
    if #lane > 3 then lanes[#lanes + 1] = lane end
  end
end

if #asked > 0 then
  for i, owned in ipairs(call('SMISMEMBER', held, unpack(asked))) do
    if owned == 1 and full() then more = 1 elseif owned == 1 then read_resource(asked[i]) end
  end
  return {more, waits, lanes}
end

-- read_due reads those of the names that the session owns.
local function read_due(names)
  if not names[1] then return end
  for i, owned in ipairs(call('SMISMEMBER', held, unpack(names))) do
    if owned == 1 and full() then more = 1 elseif owned == 1 then read_resource(names[i]) end
  end
end

-- Those due first; a page of resources costs little, for any owners.
local names_page, pages = 500, 10
local done = false
for i = 0, pages - 1 do
  local due = call('ZRANGEBYSCORE', resources, '-inf', int(now), 'LIMIT', i * names_page, names_page)
  read_due(due)
  done = #due < names_page or full()
  if done then break end
end
if not done and call('SCARD', held) <= pages * names_page then
  -- Very many that are due belong to others: what is owned is looked at instead.
  local mine, names = {}, call('SMEMBERS', held)
  lanes, count, size, waits, more = {}, 0, 0, -1, 0
  for from = 1, #names, names_page do
    local to = math.min(from + names_page - 1, #names)
    for i, at in ipairs(call('ZMSCORE', resources, unpack(names, from, to))) do
      if at then mine[#mine + 1] = {tonumber(at), names[from + i - 1]} end
    end
  end
  table.sort(mine, function(a, b) return a[1] < b[1] end)
  for _, m in ipairs(mine) do
    if full() then
      more = 1
      break
    end
    if m[1] > now then
      wait_for(m[1])
      break
    end
    read_resource(m[2])
  end
elseif not done then
  -- Very many are owned, too: each call looks at another part of those that are due.
  local from = now % math.max(call('ZCOUNT', resources, '-inf', int(now)) - pages * names_page, 1) + pages * names_page
  for i = 0, pages - 1 do
    if not full() then
      read_due(call('ZRANGEBYSCORE', resources, '-inf', int(now), 'LIMIT', int(from + i * names_page), names_page))
    end
  end
  wait_for(now + 10000)
elseif more == 0 then
  -- The first that waits. When many wait that belong to others, one of theirs stands for it: asking
  -- early does no harm.
  for i = 0, pages - 1 do
    local later = call('ZRANGEBYSCORE', resources, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', i * names_page, names_page)
    local names = {}
    for k = 1, #later, 2 do names[#names + 1] = later[k] end
    local found = #names == 0
    if not found then
      for k, owned in ipairs(call('SMISMEMBER', held, unpack(names))) do
        if owned == 1 then
          wait_for(tonumber(later[2 * k]))
          found = true
          break
        end
      end
    end
    if found or #names < names_page then break end
    if i == pages - 1 then wait_for(tonumber(later[#later])) end
  end
end
return {more, waits, lanes}
