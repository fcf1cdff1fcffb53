-- Trims topics below what all consumers that match them have passed.
-- number of this tag, number of consumers with views, then of each: name, id up to which it
-- has passed what was copied; then the topics
-- Returns how many entries were dropped.
local tag, passed = argn(), {}
for _ = 1, argn() do
  local name = arg()
  passed[name] = argn()
end

-- at reads the part of a cursor that is this tag's.
local function at(cursor)
  if not cursor or cursor == '' then return 0, 0 end
  local i = 0
  for part in (cursor .. ','):gmatch('([^,]*),') do
    if i == tag or not cursor:find(',', 1, true) then
      return tonumber(part:match('^%d+')) or 0, tonumber(part:match('%-(%d+)$')) or 0
    end
    i = i + 1
  end
  return 0, 0
end

local readers = {}
local all = call('HGETALL', T .. 'consumers')
for i = 1, #all, 2 do
  local name, c = all[i], cjson.decode(all[i + 1])
  if c.topics and not c.source and not c.announced then
    local r = {name = name, p = {}}
    local w = patterns_of(name)
    for _, p in ipairs(w and w.p or c.topics) do r.p[#r.p + 1] = split(p) end
    if c.per ~= 'topic' then
      local v = view_of(name)
      r.upto = passed[name] or 0
      if v then r.p = v.p end
      if not v then r.upto = 0 elseif v.at then r.upto = math.min(r.upto, tonumber(v.at)) end
    end
    readers[#readers + 1] = r
  end
end

local dropped = 0
while argi < #ARGV do
  local topic = arg()
  local stream = T .. 't:' .. topic
  local ms, seq
  for _, r in ipairs(readers) do
    if fits_any(r.p, topic) then
      local m, s = r.upto, 0
      if not m then
        local c = call('HGET', lease_key(r.name, topic), 'c')
        m, s = at(c or call('HGET', T .. 'starts', r.name))
      end
      if not ms or m < ms or m == ms and s < seq then ms, seq = m, s end
    end
  end
  local is = call('TYPE', stream).ok
  if is == 'stream' and ms and ms > 0 then
    dropped = dropped + call('XTRIM', stream, 'MINID', '=', int(ms) .. '-' .. int(seq + 1))
  end
  if is == 'none' or is == 'stream' and call('XLEN', stream) == 0 then
    call('ZREM', T .. 'topics', topic)
    call('DEL', stream)
  end
end
return dropped
