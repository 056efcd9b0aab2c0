-- append: records into one space's log, in one atomic step.
-- Guarantee: everything is judged before the first write; what is not allowed is not written and leaves a
--   protocol_violation (once per refused record; a full space, a stale merge and a word of a worker beside an attempt
--   that is not its own any more leave nothing); in mode `step` (lease checked) and `all` all are written or none. One outcome a record.
-- KEYS: 1 log 2 tasks 3 ids 4 meta 5 outbox 6 due 7 held 8 names 9 beats (one slot; index streams share the tag)
-- ARGV: 1 mode batch|step|all 2 term 3 holder 4 most records 5 most bytes, then one a record: 17 parts joined by 0x1f:
--   id who time event what detail trace session digest attempt owner role agent target flags extra workspace
--   attempt '' = not a task record; flags 'c' = a command (identity decides); extra: task_processing worker,
--   task_retrying delay in ms, waiting question, decision action|task|question|role, merge root|as_of;
--   workspace '' or area|agent|kind of the writer; an 18th part, where given, is a file of a workspace: JSON [area, path, text]
-- Returns: 'NOSPACE', 'TERM', or one string a record: '+entry', '=entry', '-reason\nmessage\nviolation entry'
--#include law
local keys = space_keys()
local log = open_log(keys)
if not log.kind then return 'NOSPACE' end
local step = ARGV[1] ~= 'batch'
if ARGV[1] == 'step' and (ARGV[2] ~= log.term or ARGV[3] ~= log.holder) then return 'TERM' end
local most, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()
local states, before, ids, order = {}, {}, {}, {}

local function state_of(task)
  if states[task] == nil then
    local s = unpack_state(redis.call('HGET', keys.tasks, task))
    states[task], before[task] = s or false, s and s.state or ''
  end
  return states[task] or nil
end
local function touch(task, s)
  states[task] = s
  if not s.touched then s.touched = true; order[#order + 1] = task end
end
local function known_id(id)
  if ids[id] == nil then ids[id] = redis.call('HGET', keys.ids, id) or false end
  return ids[id]
end

local ALWAYS = {task_processing = 1, task_completed = 1, task_failed = 1, task_retrying = 1, task_blocked = 1, task_agent_lost = 1,
                task_merged = 1, decision = 1, protocol_violation = 1, error = 1}
local WRITERS = {private = {master = 1, verifier = 1}, summaries = {manager = 1}, shared = {person = 1}, queue = {master = 1, person = 1}}
local function workspace_refusal(ws, who)
  local w = split(ws, '|')
  local area, agent, kind = w[1], w[2], w[3]
  if area == 'private' and agent ~= who then return "'" .. who .. "' wrote into the private workspace of '" .. agent .. "'" end
  if not (WRITERS[area] or {})[kind] then return 'a ' .. kind .. " can't write to '" .. area .. "'" end
end

local function read_record(joined)
  local f = split(joined, '\31')
  local r = {id = f[1], who = f[2], time = f[3], event = f[4], what = f[5], detail = f[6], trace = f[7], session = f[8], digest = f[9],
             owner = f[11], role = f[12], agent = f[13], target = f[14], command = f[15] == 'c', extra = f[16], ws = f[17], file = f[18],
             worker = '', waiting = ''}
  if f[10] ~= '' then
    r.attempt = tonumber(f[10])
    r.uncounted = r.attempt > 9007199254740991 -- numbers are doubles here: above, two of them are one
    if r.target == 'processing' then r.worker = r.extra
    elseif r.target == 'waiting' then r.waiting = r.extra
    elseif r.target == 'retrying' then r.delay = tonumber(r.extra) end
  elseif r.event == 'decision' and r.extra ~= '' then
    local e = split(r.extra, '|')
    r.action, r.task, r.question, r.to_role = e[1], e[2], e[3], e[4]
  elseif r.event == 'task_merged' and r.extra ~= '' then
    local e = split(r.extra, '|')
    r.root, r.as_of = e[1], e[2]
  end
  return r
end

-- outcome, reason or entry, message; changes the states in memory when the record is new
local function rule(r)
  if r.ws ~= '' then
    local why = workspace_refusal(r.ws, r.who)
    if why then return 'refused', 'foreign_workspace', why end
  end
  if r.uncounted then
    return 'full', 'too_large', "attempt of '" .. r.id .. "' is more than a server can count to"
  end
  if r.attempt then
    local s = state_of(r.id)
    local outcome, a, b = judge(s, r)
    if outcome == 'new' then
      if (log.n >= most or log.total >= most_bytes) and not ALWAYS[r.event] and r.target ~= 'waiting' and r.attempt == 1 then
        return 'full', 'too_large', 'the space holds ' .. log.n .. ' records (limit ' .. most .. '): archive it or raise the limit'
      end
      touch(r.id, apply(s, r))
    end
    return outcome, a, b
  end
  local known = known_id(r.id)
  if known then
    local k = split(known, ',')
    if r.command or k[1] == r.digest then return 'already', k[2] end
    return 'refused', 'duplicate_id', "a different record '" .. r.id .. "' exists"
  end
  if is_start(r.owner) then -- a word beside an attempt (heartbeat, notice, question): its worker's while it holds the task
    local task = cjson.decode(r.trace).parent_id
    local s = type(task) == 'string' and state_of(task)
    if s and (s.state ~= 'processing' or s.owner ~= r.owner) then
      return 'full', 'not_the_owner', "'" .. task .. "' is '" .. s.state .. "', owned by '" .. s.owner .. "'"
    end
  end
  if r.action and r.task ~= '' then
    local s = state_of(r.task)
    local outcome, a, b = judge_decision(s, r.action, r.task, r.question)
    if outcome == 'refused' then return outcome, a, b end
    if s and DECISION_TO[r.action] then apply_decision(s, r.action, r.to_role); touch(r.task, s) end
  elseif r.action then
    -- finish, resume, cancel of a session: noted when it is written
  elseif r.root then
    if r.as_of ~= '' and entry_after(log.matter, r.as_of) then
      return 'full', 'stale_read', 'a record came after ' .. r.as_of .. ': compute the merge again'
    end
    local s = state_of(r.root)
    if s and SAME[s.state]['merged'] then s.state, s.owner, s.due, s.waiting = 'merged', '', '0', ''; touch(r.root, s) end
  elseif (log.n >= most or log.total >= most_bytes) and not ALWAYS[r.event]
         and not (is_start(r.owner) and string.sub(r.id, 1, 4) == 'ASK_') then
    return 'full', 'too_large', 'the space holds ' .. log.n .. ' records (limit ' .. most .. '): archive it or raise the limit'
  end
  ids[r.id] = r.digest .. ','
  return 'new'
end

local rulings = {}
for at = 6, #ARGV do
  local r = read_record(ARGV[at])
  local outcome, a, b = rule(r)
  if step and (outcome == 'refused' or outcome == 'full') then
    return {'STEP', tostring(at - 6), a, b}
  end
  rulings[#rulings + 1] = {r = r, outcome = outcome, a = a, b = b}
end

local function violation(r, reason, message)
  local id = 'PV_' .. r.digest .. (r.attempt and ('_' .. string.format('%d', r.attempt)) or '')
  local known = redis.call('HGET', keys.ids, id)
  if known then return split(known, ',')[2] end
  local raw = '{"id":' .. cjson.encode(r.id) .. ',"who":' .. cjson.encode(r.who) .. ',"time":' .. r.time .. ',"event":' .. cjson.encode(r.event)
    .. ',"what":' .. cjson.encode(r.what) .. ',"detail":' .. r.detail .. ',"trace":' .. r.trace .. '}'
  local detail = '{"reason":"' .. reason .. '","message":' .. cjson.encode(message) .. ',"raw":' .. raw .. '}'
  local entry = write(keys, log, id, 'store', string.format('%d', math.floor(now / 1000)), 'protocol_violation', string.sub(reason .. ': ' .. r.event .. ' of ' .. r.id, 1, 400),
                      detail, r.trace, r.session)
  redis.call('HSET', keys.ids, id, r.digest .. ',' .. entry)
  return entry
end

local out = {}
for i, ruling in ipairs(rulings) do
  local r = ruling.r
  if ruling.outcome == 'already' then
    ruling.wait = ruling.a == ''
    out[i] = '=' .. ruling.a
  elseif ruling.outcome == 'full' then
    out[i] = '-' .. ruling.a .. '\n' .. ruling.b .. '\n'
  elseif ruling.outcome == 'refused' then
    out[i] = '-' .. ruling.a .. '\n' .. ruling.b .. '\n' .. violation(r, ruling.a, ruling.b)
  else
    local entry = write(keys, log, r.id, r.who, r.time, r.event, r.what, r.detail, r.trace, r.session)
    if r.file then
      local file = cjson.decode(r.file)
      redis.call('HSET', keys.base .. ':area:' .. file[1], file[2], file[3])
    end
    if r.attempt then
      local s = states[r.id]
      s.seen[record_mark(r)][2] = entry
      if r.delay and s.state == 'retrying' then s.due = string.format('%d', ms_of(entry) + r.delay) end
    else
      later('HSET', keys.ids, r.id, r.digest .. ',' .. entry)
      ids[r.id] = r.digest .. ',' .. entry
      if r.action == 'finish' then redis.call('HSET', keys.meta, 'finish', entry)
      elseif r.action == 'resume' then redis.call('HDEL', keys.meta, 'finish')
      elseif r.event == 'task_merged' then redis.call('HSET', keys.meta, 'merged', entry) end
    end
    if r.owner == '' and not r.command then
      if r.event == 'heartbeat' or r.event == 'checkpoint' or r.target == 'processing' or (r.target == 'started' and r.id ~= r.session) then
        redis.call('ZADD', keys.beats, now, r.who)
      else
        redis.call('ZADD', keys.beats, 'XX', now, r.who)
      end
    end
    out[i] = '+' .. entry
  end
end
for i, ruling in ipairs(rulings) do -- a double within this very batch: its twin's entry is known only now
  if ruling.wait then
    local r = ruling.r
    out[i] = '=' .. (r.attempt and states[r.id].seen[record_mark(r)][2] or split(ids[r.id], ',')[2])
  end
end
for _, task in ipairs(order) do settle(keys, task, states[task], before[task], now) end
close_log(keys, log)
return out
