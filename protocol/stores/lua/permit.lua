-- permit: may one more call go to a model endpoint now? Shared by every process that calls it.
-- Guarantee: within any minute of the server's clock no more calls and tokens are let through than stated, never more at
--   once, and none while the endpoint asked for rest. A holder that died gives its place back when its lease ends.
-- KEYS: 1 calls (zset: id -> ms) 2 running (zset: id -> end of lease) 3 state (hash: id -> tokens, = sum, ~ rest until)
-- ARGV: take id tokens requests tokens concurrent lease_ms  (limits: 0 is none)
--       | settle id tokens  ('' keeps the guess) | renew id lease_ms | cool ms
-- Returns: take: {'ok'} | {'wait', ms}; the others: {'ok'}
if redis.replicate_commands then redis.replicate_commands() end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local MINUTE, LIFE = 60000, 600000
local verb, id = ARGV[1], ARGV[2]
local function keep()
  for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], LIFE) end
end
local function int(n) return string.format('%d', n) end

if verb == 'cool' then
  local ends = now + tonumber(id)
  if ends > tonumber(redis.call('HGET', KEYS[3], '~') or '0') then redis.call('HSET', KEYS[3], '~', int(ends)) end
  redis.call('PEXPIRE', KEYS[3], math.max(LIFE, tonumber(id) + 1000))
  return {'ok'}
end
if verb == 'renew' then
  redis.call('ZADD', KEYS[2], 'XX', int(now + tonumber(ARGV[3])), id)
  keep()
  return {'ok'}
end
if verb == 'settle' then
  redis.call('ZREM', KEYS[2], id)
  local guess = redis.call('HGET', KEYS[3], id)
  if guess and ARGV[3] ~= '' then
    redis.call('HINCRBY', KEYS[3], '=', int(tonumber(ARGV[3]) - tonumber(guess)))
    redis.call('HSET', KEYS[3], id, ARGV[3])
  end
  return {'ok'}
end

local tokens, requests, most, at_once = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if redis.call('HEXISTS', KEYS[3], id) == 1 then return {'ok'} end -- granted before, the answer was lost
local rest = tonumber(redis.call('HGET', KEYS[3], '~') or '0')
if rest > now then return {'wait', rest - now} end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now - MINUTE))) do
  redis.call('HINCRBY', KEYS[3], '=', int(-tonumber(redis.call('HGET', KEYS[3], old) or '0')))
  redis.call('HDEL', KEYS[3], old)
  redis.call('ZREM', KEYS[1], old)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(now))
if at_once > 0 and redis.call('ZCARD', KEYS[2]) >= at_once then return {'wait', 100} end
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local calls = redis.call('ZCARD', KEYS[1])
local free = oldest and math.max(1, tonumber(oldest) + MINUTE - now + 1) or 1
if requests > 0 and calls >= requests then return {'wait', free} end
-- A call that is larger than the limit by itself goes when nothing else was counted.
if most > 0 and calls > 0 and tonumber(redis.call('HGET', KEYS[3], '=') or '0') + tokens > most then return {'wait', free} end
redis.call('ZADD', KEYS[1], int(now), id)
redis.call('ZADD', KEYS[2], int(now + tonumber(ARGV[7])), id)
redis.call('HSET', KEYS[3], id, int(tokens))
redis.call('HINCRBY', KEYS[3], '=', int(tokens))
keep()
return {'ok'}
