# Runs a RabbitMQ program for the node in a directory, independent of other installed or running nodes.
#
# $1: the directory, with `rabbitmq.conf`, `plugins` and `.erlang.cookie`. $2: the node's name. $3: the port between
# nodes. $4: the port of its epmd, which only nodes of its own cluster share. The rest: the program and its arguments.
export HOME="$1" RABBITMQ_NODENAME="$2" RABBITMQ_DIST_PORT="$3" ERL_EPMD_PORT="$4" ERL_EPMD_ADDRESS=127.0.0.1
export RELEVO_SERVER_DIRECTORY="$1" RABBITMQ_CONF_ENV_FILE="$1/none" RABBITMQ_CONFIG_FILE="$1/rabbitmq"
export RABBITMQ_ADVANCED_CONFIG_FILE="$1/none" RABBITMQ_ENABLED_PLUGINS_FILE="$1/plugins" RABBITMQ_PID_FILE="$1/pid"
export RABBITMQ_MNESIA_BASE="$1/mnesia" RABBITMQ_GENERATED_CONFIG_DIR="$1/generated" RABBITMQ_LOG_BASE="$1/log"
# Several nodes share few cores: no scheduler is bound to a core, and none spins when idle unless the caller sets it.
export RABBITMQ_SCHEDULER_BIND_TYPE=u
export RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD="${RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD:-none}"
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}"
export RABBITMQ_CTL_DIST_PORT_MIN=35672 RABBITMQ_CTL_DIST_PORT_MAX=36672
shift 4
# The server outlives the process that starts it. An inherited pipe or lock would stay open for that long.
exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
# Otherwise the server starts an extra Erlang runtime just to start epmd.
epmd -daemon
exec "$@"
