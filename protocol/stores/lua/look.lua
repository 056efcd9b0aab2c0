-- look: what in one space waits for the manager. Writes nothing.
-- KEYS: 1 meta 2 tasks 3 outbox 4 due 5 held 6 beats
-- ARGV: 1 outbox older than ms 2 overdue by ms 3 silent for ms 4 most of each
-- Returns: {now, meta (kind policy finish judged matter lease_until merged n), outbox, due, held, silent, [outbox size, due size]}
--   outbox and due: flat task, packed state; held: flat task, start or !lost; silent: flat agent, ms of its last sign
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local most = tonumber(ARGV[4])
local function with_state(tasks)
  local out = {}
  for _, task in ipairs(tasks) do
    out[#out + 1] = task
    out[#out + 1] = redis.call('HGET', KEYS[2], task) or ''
  end
  return out
end
local meta = redis.call('HMGET', KEYS[1], 'kind', 'policy', 'finish', 'judged', 'matter', 'lease_until', 'merged', 'n')
for i = 1, 8 do meta[i] = meta[i] or '' end
local function before(ms) return '(' .. string.format('%d', now - tonumber(ms)) end
local outbox = with_state(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', before(ARGV[1]), 'LIMIT', 0, most))
local due = with_state(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', before(ARGV[2]), 'LIMIT', 0, most))
local held = {}
if redis.call('HLEN', KEYS[5]) <= 5000 then held = redis.call('HGETALL', KEYS[5])
else held = redis.call('HRANDFIELD', KEYS[5], 5000, 'WITHVALUES') end
local silent = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', before(ARGV[3]), 'WITHSCORES', 'LIMIT', 0, most)
for _, word in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. string.format('%d', now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)) do
  silent[#silent + 1] = word -- a sign from the future: the clock was set back, and the caller judges
end
return {string.format('%d', now), meta, outbox, due, held, silent,
        {redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]), redis.call('HLEN', KEYS[5]), redis.call('ZCARD', KEYS[6])}}
