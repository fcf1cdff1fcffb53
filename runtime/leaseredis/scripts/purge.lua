-- Deletes dead letters: consumer, numbers. Returns how many there were.
local consumer, n = arg(), 0
for i = 2, #ARGV do
  if drop_dead(consumer, ARGV[i]) then n = n + 1 end
end
return n
