-- reserve: set tokens and money aside in a session's budget before a model call.
-- Guarantee: what is used and what is set aside together never pass the limits, whoever asks on whatever host; only the
--   attempt's owner is given anything. What a dead holder set aside counts as used once its lease has ended. Asking
--   again for the same call gives the same answer.
-- KEYS: 1 tasks 2 used (hash) 3 calls (zset: call -> server ms at which its lease ends)
-- ARGV: renew call lease_ms
--       | reserve call lease_ms task attempt owner epoch tokens micros prompt prompt_micros least most micros_a_token
--   tokens, micros: the limits, '' is none; epoch: a higher one than before starts counting anew; least, most: tokens
--   of the answer, of which `most` is wanted
-- Returns: renew: {'ok'}; reserve: {'ok', tokens of the answer} | {'wait'} (others hold what is left)
--   | {'over', 'tokens'|'money', used, limit} | {'lost', why}
--#include common
local call, now = ARGV[2], now_ms()
local function int(n) return string.format('%d', n) end
local function number(field) return tonumber(redis.call('HGET', KEYS[2], field) or '0') end
local lease = int(now + tonumber(ARGV[3]))
if ARGV[1] == 'renew' then
  redis.call('ZADD', KEYS[3], 'XX', lease, call)
  return {'ok'}
end
local why = fence(KEYS[1], ARGV[4], ARGV[5], ARGV[6])
if why then return {'lost', why} end
local mine = redis.call('HGET', KEYS[2], 'c:' .. call)
if mine then return {'ok', tonumber(split(mine, '|')[3])} end

for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(now))) do
  local held = split(redis.call('HGET', KEYS[2], 'c:' .. dead) or '0|0|0', '|')
  redis.call('HINCRBY', KEYS[2], '=tokens', held[1])
  redis.call('HINCRBY', KEYS[2], '=micros', held[2])
  redis.call('HINCRBY', KEYS[2], '=held_tokens', int(-tonumber(held[1])))
  redis.call('HINCRBY', KEYS[2], '=held_micros', int(-tonumber(held[2])))
  redis.call('HSET', KEYS[2], 'c:' .. dead, held[1] .. '|' .. held[2] .. '|' .. held[3] .. '|used')
  redis.call('ZREM', KEYS[3], dead)
end
if tonumber(ARGV[7]) > number('=epoch') then
  redis.call('HSET', KEYS[2], '=epoch', ARGV[7], '=tokens', '0', '=micros', '0')
end
local prompt, prompt_micros, least, most, each =
  tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
-- How long an answer may be at most, if nobody else held anything, and with what the others hold.
local alone, now_free, over = most, most, nil
local function limit(most_text, used, held, fixed, a_token, name)
  if most_text == '' then return end
  local room = tonumber(most_text) - used - fixed
  local function answer(left)
    if left < 0 then return -1 end
    return a_token > 0 and math.floor(left / a_token) or most
  end
  if answer(room) < least and not over then over = {'over', name, int(used), most_text} end
  alone, now_free = math.min(alone, answer(room)), math.min(now_free, answer(room - held))
end
limit(ARGV[8], number('=tokens'), number('=held_tokens'), prompt, 1, 'tokens')
limit(ARGV[9], number('=micros'), number('=held_micros'), prompt_micros, each, 'money')
if over then return over end
if now_free < alone then return {'wait'} end
local tokens, micros = int(prompt + alone), int(math.ceil(prompt_micros + alone * each))
redis.call('HSET', KEYS[2], 'c:' .. call, tokens .. '|' .. micros .. '|' .. int(alone))
redis.call('HINCRBY', KEYS[2], '=held_tokens', tokens)
redis.call('HINCRBY', KEYS[2], '=held_micros', micros)
redis.call('ZADD', KEYS[3], lease, call)
return {'ok', alone}
