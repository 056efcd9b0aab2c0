-- clear: what was enqueued leaves its space's outbox.
-- Guarantee: only while the task is assigned with just that attempt, or is assigned no more: whoever is late takes
--   nothing out that was assigned since.
-- KEYS: 1 tasks 2 outbox
-- ARGV: 2 a reference: task attempt
-- Returns: how many left
local gone = {}
for at = 1, #ARGV, 2 do
  local state, attempt = string.match(redis.call('HGET', KEYS[1], ARGV[at]) or '', '^(%a+)|(%d+)|')
  if state ~= 'assigned' or attempt == ARGV[at + 1] then gone[#gone + 1] = ARGV[at] end
end
local n = 0
for from = 1, #gone, 500 do n = n + redis.call('ZREM', KEYS[2], unpack(gone, from, math.min(#gone, from + 499))) end
return n
