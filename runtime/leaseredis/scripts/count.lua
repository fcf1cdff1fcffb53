-- Counts the entries of a stream between two ids: KEYS[1], from, to, how many entries and bytes to look at. Returns
-- how many it found, the id of the last, and 1 when that is all.
local from, to, rows, room = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local n, page, last, size = 0, 1, '', 0
while n < rows and size < room do
  local asked = math.min(page, rows - n)
  local found = redis.call('XRANGE', KEYS[1], from, to, 'COUNT', asked)
  for _, e in ipairs(found) do
    for _, s in ipairs(e[2]) do size = size + #s end
  end
  n = n + #found
  if #found > 0 then last = found[#found][1] end
  if #found < asked or last == '18446744073709551615-18446744073709551615' then return {n, last, 1} end
  from = '(' .. last
  page = math.max(math.min(page * 4, 500, math.floor((room - size) / (size / n + 1))), 1)
end
return {n, last, 0}
