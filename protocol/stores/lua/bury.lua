-- bury: starts are declared dead, once and for ever.
-- Guarantee: death is a write. In mode `sweep` ages count only while someone watched: after a gap between sweeps, on
--   another run of the server, or where its clock was set (a beat from the future counts as one of now), everyone gets a
--   fresh window. A grave older than a day that is settled is forgotten.
-- KEYS: 1 workers 2 info 3 graves 4 grave info 5 unsettled 6 watch
-- ARGV: 1 verb one|sweep|leave; one: 2 start 3 reason; leave: 2 start; sweep: 2 dead after ms 3 run id 4 gap ms 5 stalled-lost ms (0 = never)
-- Returns: list of starts buried by this call
if redis.replicate_commands then redis.replicate_commands() end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local out = {}
local function bury(start, reason)
  if redis.call('ZSCORE', KEYS[3], start) then return end
  local beat = redis.call('ZSCORE', KEYS[1], start) or string.format('%d', now)
  local info = redis.call('HGET', KEYS[2], start) or '{}'
  if not pcall(cjson.decode, info) then info = '{}' end
  redis.call('ZADD', KEYS[3], now, start)
  redis.call('HSET', KEYS[4], start, '{"reason":' .. cjson.encode(reason) .. ',"at":' .. string.format('%d', now) .. ',"last_beat":' ..
             string.format('%d', tonumber(beat)) .. ',"info":' .. info .. '}')
  redis.call('SADD', KEYS[5], start)
  redis.call('ZREM', KEYS[1], start)
  redis.call('HDEL', KEYS[2], start)
  out[#out + 1] = start
end
if ARGV[1] == 'one' then
  bury(ARGV[2], ARGV[3])
elseif ARGV[1] == 'leave' then
  bury(ARGV[2], 'left')
else
  local watch = redis.call('HMGET', KEYS[6], 'last', 'run', 'from')
  local from = tonumber(watch[3] or '0')
  local gap = now - tonumber(watch[1] or '0')
  if math.abs(gap) > tonumber(ARGV[4]) or watch[2] ~= ARGV[3] then from = now end
  if gap < 0 then
    for _, start in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%d', now), '+inf')) do
      redis.call('ZADD', KEYS[1], string.format('%d', now), start)
    end
  end
  redis.call('HSET', KEYS[6], 'last', string.format('%d', now), 'run', ARGV[3], 'from', string.format('%d', from))
  local cut = now - tonumber(ARGV[2])
  if from <= cut then
    for _, start in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%d', cut), 'LIMIT', 0, 200)) do
      bury(start, 'no beat')
    end
  end
  if tonumber(ARGV[5]) > 0 then
    for _, start in ipairs(redis.call('ZRANGE', KEYS[1], 0, 999)) do
      local ok, info = pcall(cjson.decode, redis.call('HGET', KEYS[2], start) or '{}')
      if ok and type(info) == 'table' and (tonumber(info.loop_age_s) or 0) * 1000 > tonumber(ARGV[5]) then bury(start, 'stalled') end
    end
  end
  for _, start in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - 86400000, 'LIMIT', 0, 200)) do
    if redis.call('SISMEMBER', KEYS[5], start) == 0 then redis.call('ZREM', KEYS[3], start); redis.call('HDEL', KEYS[4], start) end
  end
end
return out
