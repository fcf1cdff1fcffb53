-- Takes a token for a while, or gives it back: name, holder, ms (0: gives it back). Returns 1 if
-- the holder has it.
local key, holder, ms = T .. arg(), arg(), argn()
local has = call('GET', key)
if ms == 0 then
  if has == holder then call('DEL', key) end
  return 0
end
if not has then
  urgent()
  call('SET', key, holder, 'PX', ms)
end
return (not has or has == holder) and 1 or 0
