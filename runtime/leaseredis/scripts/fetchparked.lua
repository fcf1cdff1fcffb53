-- Reads due parked messages of resources that a session owns: consumer, session, limits in messages
-- and bytes, the limit in messages of one resource, how many resources to read (0: all), these, and
-- those to leave out. Returns whether the limits cut it short, the time in µs until a lane is due (-1:
-- nothing waits), and the lanes: {resource, lane, how long it has been due, {id, 1 if it is the
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

local function read_lane(p, lane, since)
  local key, out = p.lanes .. lane, {p.resource, lane, now - since}
  local length, from = call('LLEN', key), 0
  while from < length do
    local ids = call('LRANGE', key, from, from + 99)
    for i, packed in ipairs(call('HMGET', p.all, unpack(ids))) do
      if packed then -- else someone else deleted it
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
    from = from + 100
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

-- Those due first; a page of resources costs little, whoever owns them. When very many that are due
-- belong to others, the intersection with what is owned costs less than looking at all.
local page, pages = 500, 10
local done = false
for i = 0, pages - 1 do
  local due = call('ZRANGEBYSCORE', resources, '-inf', int(now), 'LIMIT', i * page, page)
  if due[1] then
    for k, owned in ipairs(call('SMISMEMBER', held, unpack(due))) do
      if owned == 1 and full() then more = 1 elseif owned == 1 then read_resource(due[k]) end
    end
  end
  done = #due < page or full()
  if done then break end
end
if not done then
  local mine = call('ZINTER', 2, resources, held, 'WEIGHTS', 1, 0, 'WITHSCORES')
  lanes, count, size, waits, more = {}, 0, 0, -1, 0
  for i = 1, #mine, 2 do
    if full() then
      more = 1
      break
    end
    local at = tonumber(mine[i + 1])
    if at > now then
      wait_for(at)
      break
    end
    read_resource(mine[i])
  end
elseif more == 0 then
  -- The first that waits. When many wait that belong to others, one of theirs stands for it: asking
  -- early does no harm.
  for i = 0, pages - 1 do
    local later = call('ZRANGEBYSCORE', resources, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', i * page, page)
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
    if found or #names < page then break end
    if i == pages - 1 then wait_for(tonumber(later[#later])) end
  end
end
return {more, waits, lanes}
