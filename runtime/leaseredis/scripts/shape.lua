-- Creates the namespace's part under this tag, or leaves it as it is. Returns its tags and slots.
local tags, slots = arg(), arg()
if not layout then
  call('HSET', KEYS[1], 'layout', '1', 'tags', tags, 'slots', slots, 'last', '0')
end
local have = call('HMGET', KEYS[1], 'tags', 'slots')
return {tonumber(have[1]) or 0, tonumber(have[2]) or 0}
