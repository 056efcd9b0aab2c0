-- Shared by the scripts of a space. A task's state is packed as
--   state|attempt|owner|role|agent|tries|due_ms|waiting_for|seen      (protocol/tasks.py: pack, unpack)
-- with seen = CODEattempt=digest,entry;…
if redis.replicate_commands then redis.replicate_commands() end

local function split(text, separator)
  local out, from = {}, 1
  while true do
    local at = string.find(text, separator, from, true)
    if not at then out[#out + 1] = string.sub(text, from); return out end
    out[#out + 1] = string.sub(text, from, at - 1)
    from = at + 1
  end
end

local function unpack_state(packed)
  if not packed then return nil end
  local f = split(packed, '|')
  local state = {state = f[1], attempt = tonumber(f[2]), owner = f[3], role = f[4], agent = f[5],
                 tries = tonumber(f[6]), due = f[7], waiting = f[8], seen = {}, order = {}}
  if f[9] ~= '' then
    for _, part in ipairs(split(f[9], ';')) do
      local key, digest, entry = string.match(part, '^([^=]+)=([^,]*),(.*)$')
      state.seen[key] = {digest, entry}
      state.order[#state.order + 1] = key
    end
  end
  return state
end

local function pack_state(s)
  local seen = {}
  for i, key in ipairs(s.order) do seen[i] = key .. '=' .. s.seen[key][1] .. ',' .. s.seen[key][2] end
  return table.concat({s.state, string.format('%d', s.attempt), s.owner, s.role, s.agent, string.format('%d', s.tries), s.due,
                       s.waiting, table.concat(seen, ';')}, '|')
end

-- Writes of one kind to one key are gathered and made as one command at the end of the script: what a command costs in
-- the log of writes, its key's name and frame, is paid once a batch.
local gathered = {}
local function later(command, key, a, b)
  local slot = command .. key
  local list = gathered[slot]
  if not list then
    list = {command, key}
    gathered[slot] = list
    gathered[#gathered + 1] = list
  end
  list[#list + 1] = a
  if b then list[#list + 1] = b end
end
local function flush_gathered()
  for _, list in ipairs(gathered) do
    for from = 3, #list, 500 do -- an even number: pairs stay together, and unpack stays far from its limit
      redis.call(list[1], list[2], unpack(list, from, math.min(#list, from + 499)))
    end
  end
  gathered = {}
end

local starts = {}
local function is_start(owner)
  if starts[owner] == nil then starts[owner] = string.find(owner, '^[%w_-]+@[^@:]+:%d+:[^@:]+$') ~= nil end
  return starts[owner]
end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Is the attempt still this owner's? Returns nil when it is, else one word why not.
local function fence(tasks_key, task, attempt, owner)
  local s = unpack_state(redis.call('HGET', tasks_key, task))
  if not s then return 'unknown_task' end
  if s.attempt ~= tonumber(attempt) then return 'superseded_attempt' end
  if s.state ~= 'processing' then return s.state end
  if s.owner ~= owner then return 'not_the_owner' end
  return nil
end
