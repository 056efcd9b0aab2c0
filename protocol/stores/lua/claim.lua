-- claim: a worker takes tasks of one space that were dispatched to its role.
-- Guarantee: a compare-and-set. It succeeds only for a task that is `assigned` with exactly that attempt (or that this
--   very start has claimed already); it sets the owner and writes task_processing. It never raises an attempt, never
--   takes from another owner, and a refusal writes nothing.
-- KEYS: 1 log 2 tasks 3 ids 4 meta 5 outbox 6 due 7 held 8 names 9 beats
-- ARGV: 1 owner (a start) 2 time, then one a claim: task attempt detail digest, joined by 0x1f
-- Returns: 'NOSPACE', or one list a claim: {'+' or '=', agent, tries, detail, trace of the assignment} or {'-', state, attempt}
--#include law
local keys = space_keys()
local log = open_log(keys)
if not log.kind then return 'NOSPACE' end
local owner, time, now = ARGV[1], ARGV[2], now_ms()
local out, states = {}, {}
for at = 3, #ARGV do
  local c = split(ARGV[at], '\31')
  local task, attempt, detail, digest = c[1], tonumber(c[2]), c[3], c[4]
  local s = states[task] or unpack_state(redis.call('HGET', keys.tasks, task))
  states[task] = s -- one reference may come twice in a batch: states are written at the end
  local mine = s and s.attempt == attempt and (s.state == 'assigned' or (s.state == 'processing' and s.owner == owner))
  local assigned = mine and s.seen['A' .. c[2]]
  local found = assigned and redis.call('XRANGE', keys.log, assigned[2], assigned[2])[1]
  if not found then
    out[#out + 1] = {'-', s and s.state or 'unknown', s and string.format('%d', s.attempt) or '0'}
  else
    local f = found[2]
    local who = s.agent ~= '' and s.agent or s.role
    local sign = '='
    if s.state == 'assigned' then
      local entry = write(keys, log, task, who, time, 'task_processing', 'work on ' .. task .. ' begins', detail, f[14], session_of(f[14]))
      apply(s, {id = task, who = who, event = 'task_processing', attempt = attempt, target = 'processing', digest = digest, worker = owner,
                role = '', agent = '', waiting = ''})
      s.seen['W' .. c[2]][2] = entry
      settle(keys, task, s, 'assigned', now)
      sign = '+'
    end
    out[#out + 1] = {sign, who, string.format('%d', s.tries), f[12], f[14]}
  end
end
close_log(keys, log)
return out
