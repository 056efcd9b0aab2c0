-- raise: a counter to at least a number.
-- Guarantee: never lowers it, whoever else counts meanwhile.
-- KEYS: 1 counter
-- ARGV: 1 number
-- Returns: the counter now
if redis.replicate_commands then redis.replicate_commands() end
local now = tonumber(redis.call('GET', KEYS[1]) or '0')
local least = tonumber(ARGV[1])
if least > now then
  redis.call('SET', KEYS[1], string.format('%d', least))
  return least
end
return now
