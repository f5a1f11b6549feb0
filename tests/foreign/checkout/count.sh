# Prints so many lines, some of them far longer than a read, and says how far it is.
long=$(printf '%01500d' 0)
i=0
while [ "$i" -lt "$1" ]; do
    case $((i % 40)) in
    0) echo '{"type":"execution.progress","data":{"current":'$i',"total":'$1'}}' >"/dev/fd/$REEVE_EVENTS_FD" ;;
    20) echo "line $i is long: $long" ;;
    *) echo "line $i: zwölf Boxkämpfer 🥊" ;;
    esac
    i=$((i + 1))
    sleep 0.01
done
