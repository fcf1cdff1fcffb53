-- Describes streams, of any writer: KEYS, and after how many bytes of entries to stop, since XINFO
-- reads two of each. Returns now, and for each of the first streams, at least one: no fields when there is none, one
-- value when it is something else, or the ids of its last entry ever, of its last one and its first one now, how many
-- it has, how many were ever added, and the greatest id that was deleted (the last two: '' before Redis 7).
local room = tonumber(ARGV[1])
local clock = redis.call('TIME')
local out = {string.format('%.0f', clock[1] * 1000000 + clock[2])}

local function id_of(entry)
  if not entry then return '' end
  for _, s in ipairs(entry[2]) do room = room - #s end
  return entry[1]
end

for _, key in ipairs(KEYS) do
  if room <= 0 then break end
  local info = redis.pcall('XINFO', 'STREAM', key)
  if info.err then
    out[#out + 1] = info.err:find('no such key', 1, true) and {} or {info.err}
  else
    local s = {}
    for i = 1, #info, 2 do s[info[i]] = info[i + 1] end
    out[#out + 1] = {s['last-generated-id'], id_of(s['last-entry']), id_of(s['first-entry']), s['length'],
      s['entries-added'] or '', s['max-deleted-entry-id'] or ''}
  end
end
return out
