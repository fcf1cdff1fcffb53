-- Takes entries whose ids no clock gave out of a stream, see lib_log.lua: topic, or empty and consumer and
-- resource of a view; bytes to take at most. Returns from which id
-- on none was given by a clock, and how many were taken.
local topic, view, resource, bytes = arg(), arg(), arg(), argn()
local stream
if view == '' then
  view, resource, stream = nil, nil, T .. 't:' .. topic
else
  stream = T .. 'v:' .. view .. ':' .. resource
end
if call('TYPE', stream).ok ~= 'stream' then return {far, 0} end
local n = adopt(stream, bytes, topic, view, resource)
if n > 0 then news('m') end
return {far, n}
