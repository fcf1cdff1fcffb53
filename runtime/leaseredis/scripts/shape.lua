-- Creates the namespace's part under this tag, or leaves it as it is. Returns its tags and slots, and
-- whose it is: the tags of one namespace may look like those of another (lg with 12, lg1 with 2).
local tags, slots, namespace = arg(), arg(), arg()
if not layout then
  call('HSET', KEYS[1], 'layout', '1', 'tags', tags, 'slots', slots, 'namespace', namespace, 'last', '0')
end
local have = call('HMGET', KEYS[1], 'tags', 'slots', 'namespace')
return {tonumber(have[1]) or 0, tonumber(have[2]) or 0, have[3] or namespace}
