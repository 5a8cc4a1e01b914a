#!/bin/sh
# Mails each tenant its own lines of a month: of a closed statement the excerpt, with the file that `gpumeter statement verify`
# checks; else the bill of a node or a fleet.
#
#   mail-bills.sh [--dry-run] [MONTH] --statements DIR
#   mail-bills.sh [--dry-run] [MONTH] [OPTION of gpumeter bill]...
#
# Without MONTH the last one. Such options are --url https://node7:9855 --web.user finance --web.password-file FILE, or --exports DIR.
# The address of a tenant is its attribute "mail" (tenants.attributes), or is in the file OWNERS, one "tenant address" on each
# line. --dry-run prints who would get what. Mail goes out through SENDMAIL, which may be msmtp.
set -eu
export LC_ALL=C

OWNERS=${OWNERS:-/etc/gpumeter/owners}
SENDMAIL=${SENDMAIL:-sendmail}
month=$(date -d "$(date +%Y-%m-01) -1 day" +%Y-%m)
dry_run='' statements=''
left=$#
while [ "$left" -gt 0 ]; do
    case $1 in
        --dry-run) dry_run=1 ;;
        --statements) statements=${2:?--statements DIR}; shift; left=$((left - 1)) ;;
        [0-9][0-9][0-9][0-9]-[0-9][0-9]) month=$1 ;;
        *) set -- "$@" "$1" ;; # for gpumeter bill
    esac
    shift
    left=$((left - 1))
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tab=$(printf '\t')

# message ADDRESS SUBJECT HTML: with the JSON file beside the HTML one as an attachment, where there is one.
message() {
    subject=$2
    case $subject in
        *[!\ -~]*) subject="=?UTF-8?B?$(printf %s "$2" | base64 | tr -d '\n')?=" ;;
    esac
    printf 'To: %s\nSubject: %s\nMIME-Version: 1.0\n' "$1" "$subject"
    printf 'Content-Type: multipart/mixed; boundary="=_gpumeter"\n\n--=_gpumeter\n'
    printf 'Content-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: base64\n\n'
    base64 "$3"
    if [ -e "${3%.html}.json" ]; then
        printf '\n--=_gpumeter\nContent-Type: application/json\nContent-Transfer-Encoding: base64\n'
        printf 'Content-Disposition: attachment; filename="excerpt.json"\n\n'
        base64 "${3%.html}.json"
    fi
    printf '\n--=_gpumeter--\n'
}

# mail_one ADDRESS SUBJECT HTML
mail_one() {
    message "$@" > "$work/message"
    if [ -n "$dry_run" ]; then
        printf 'would mail to %s: %s, %s bytes\n' "$1" "$2" "$(wc -c < "$work/message")"
    elif "$SENDMAIL" -t < "$work/message"; then
        printf 'mailed to %s: %s\n' "$1" "$2"
    else
        printf 'not mailed to %s: %s\n' "$1" "$2" | tee -a "$work/failed" >&2
    fi
}

# address_of TENANT: as the file OWNERS has it; a name may have spaces, and several lines.
address_of() {
    [ -e "$OWNERS" ] || return 0
    tenant=$1 awk '{ address = $NF; sub(/[ \t]+[^ \t]+[ \t]*$/, "") }
        $0 == ENVIRON["tenant"] { printf "%s%s", comma, address; comma = ", " }' "$OWNERS"
}

# mail_all WHAT COMMAND...: the command writes a file for each tenant.
mail_all() {
    what=$1
    shift
    files=$(mktemp -d "$work/XXXXXX")
    "$@" --split-by tenant,attribute:mail "$files" > "$work/list" 2> "$work/warnings" ||
        { cat "$work/warnings" >&2; exit 1; }
    while IFS=$tab read -r file tenant address; do
        case $address in
            *?@?*) ;;
            *) address=$(address_of "$tenant") ;;
        esac
        case $address,$tenant in
            ,__*) ;; # time of nobody
            ,*) printf 'no address: %s of %s, %s\n' "$what" "$tenant" "$month" >&2 ;;
            *) mail_one "$address" "$what of $tenant, $month" "$file" ;;
        esac
    done < "$work/list"
}

if [ -n "$statements" ]; then
    # Statements have their month and their nodes; a mistyped --dry-run must not send mail.
    [ $# -eq 0 ] || { echo "beside --statements there is no $1; use --dry-run or a month" >&2; exit 2; }
    gpumeter statement verify "$statements" > "$work/verified" || { cat "$work/verified" >&2; exit 1; }
    found=''
    for file in "$statements"/statement-*.json; do
        gpumeter statement show "$file" > "$work/shown"
        # The period stands below whose bill it is.
        if sed -n '/^Bill of /{n;p;q;}' "$work/shown" | grep -q "^$month-01 00:00 "; then
            found=1
            number=${file##*/statement-}
            mail_all "GPU statement ${number%.json}" gpumeter statement show "$file"
        fi
    done
    [ -n "$found" ] || { echo "$statements: no statement of $month" >&2; exit 1; }
else
    # A bill that ends before the month does is not mailed.
    gpumeter bill --month "$month" "$@" > "$work/all"
    if grep -E '^(ends at|exports end before|LEFT OUT,|MAY BE INCOMPLETE:|not reported by expected nodes,) ' "$work/all" >&2; then
        exit 1
    fi
    mail_all "GPU bill" gpumeter bill --month "$month" "$@"
fi
[ ! -e "$work/failed" ]
