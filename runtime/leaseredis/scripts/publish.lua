-- Appends events to the log once for each attempt: the first ones, as many as one call may write.
-- publisher, number of its attempt, least number of those that are not over, seen (greatest id that the publisher
-- knows of), then of each event: topic, kind,
-- key, slot ('' when it has no key), headers, payload, event id, due (µs or 0), delay (µs)
-- Returns the last id that was given, and how many of the events were appended: all of these, or none after an error.
local attempts, number, low, seen = T .. 'pub:' .. arg(), arg(), argn(), argn()
local known = call('HMGET', attempts, number, 'low', 'until')
if known[1] then
  local id, n = known[1]:match('^(%d+) (%d+)$')
  return {tonumber(id), tonumber(n)}
end
local was = tonumber(known[2] or low)
if tonumber(number) < was then return {last, 0} end -- it was carried out, and held up on its way

-- Ids rise also above what the publisher has seen of other tags, whose clocks may differ. An event that is
-- a day ahead is not followed: no clock gave it.
if seen > last and seen < now + 86400000000 then last = seen end
local ids, waiting, appended = {}, {}, 0
single = #ARGV - argi == 9
while argi < #ARGV and work < most do
  appended = appended + 1
  local m = {topic = arg(), kind = arg(), key = arg(), slot = arg(), headers = arg(), payload = arg()}
  local id, due, delay = arg(), argn(), argn()
  local claimed = false
  if id ~= '' then
    id = T .. 'id:' .. #m.topic .. ':' .. m.topic .. ':' .. id
    claimed = ids[id] or call('EXISTS', id) == 1
    ids[id] = true
  end
  if not claimed then
    if due > 0 then due = of_wall(due) end
    if now + delay > due then due = now + delay end
    if due > now then
      last = math.max(last + 1, now)
      waiting[#waiting + 1] = {int(last), due, m}
    else
      local bad = plan(m)
      if bad then return redis.error_reply(bad) end
    end
  end
end

-- Attempts that are over are forgotten, some at a time: a number says below which all are. The rest is kept for at
-- least a minute, longer than it is tried again.
local gone = {}
low = math.min(low, was + 1000)
if low - was >= 32 then
  for n = was, low - 1 do gone[#gone + 1] = int(n) end
else
  low = was
end
local done = int(last) .. ' ' .. int(appended)
if now + 60000000 > tonumber(known[3] or 0) then
  call('HSET', attempts, number, done, 'low', int(low), 'until', int(now + 120000000))
  call('PEXPIRE', attempts, 120000)
else
  call('HSET', attempts, number, done, 'low', int(low))
end
if #gone > 0 then call('HDEL', attempts, unpack(gone)) end
local ok, err = pcall(carry_out)
if not ok then
  call('HDEL', attempts, number)
  return redis.error_reply(type(err) == 'table' and err.err or tostring(err))
end
for id in pairs(ids) do call('SET', id, '1', 'PX', 604800000, 'NX') end
for _, w in ipairs(waiting) do
  delay(w[1], w[2], w[3])
end
if #planned == 0 and #waiting > 0 then call('HSET', KEYS[1], 'last', int(last)) end
if #planned > 0 or #waiting > 0 then news('m') end
return {last, appended}
