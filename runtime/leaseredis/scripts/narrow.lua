-- Drops patterns of a consumer that no member has had for longer than kept (µs), but not the last.
-- Returns them.
local consumer, kept = arg(), argn()
local w = patterns_of(consumer)
if not w then return {} end
local wanted = {}
for _, id in ipairs(call('SMEMBERS', T .. 'members:' .. consumer)) do
  if alive(id) then
    local topics = call('HGET', T .. 's:' .. id, 'topics')
    local its = topics and cjson.decode(topics)[consumer]
    if not its then return {} end -- it was opened by a program that does not say
    for _, p in ipairs(its) do wanted[p] = true end
  end
end
local gone, left, dropped = {}, {}, {}
for _, p in ipairs(w.p) do
  local since = not wanted[p] and (w.gone and w.gone[p] or int(now)) or nil
  if since and now - tonumber(since) > kept then
    dropped[#dropped + 1] = p
  else
    left[#left + 1] = p
    gone[p] = since
  end
end
if #left == 0 then return {} end
call('HSET', T .. 'patterns', consumer, cjson.encode({p = left, gone = next(gone) and gone or nil}))
local v = #dropped > 0 and view_of(consumer)
if v then
  v.p = {}
  for _, p in ipairs(left) do v.p[#v.p + 1] = split(p) end
  call('HSET', T .. 'views', consumer, cjson.encode(v))
end
return dropped
