package mongoerr

// Code is a MongoDB error code. Those without a name of their own print as
// "Location<n>", as a server prints them.
type Code int32

// The named codes that shardgate makes or reads (MONGOS.md §5.5).
const (
	InternalError                            Code = 1
	BadValue                                 Code = 2
	NoSuchKey                                Code = 4
	HostUnreachable                          Code = 6
	HostNotFound                             Code = 7
	FailedToParse                            Code = 9
	UserNotFound                             Code = 11
	UnsupportedFormat                        Code = 12
	Unauthorized                             Code = 13
	TypeMismatch                             Code = 14
	Overflow                                 Code = 15
	InvalidLength                            Code = 16
	ProtocolError                            Code = 17
	AuthenticationFailed                     Code = 18
	IllegalOperation                         Code = 20
	InvalidBSON                              Code = 22
	AlreadyInitialized                       Code = 23
	LockTimeout                              Code = 24
	NamespaceNotFound                        Code = 26
	IndexNotFound                            Code = 27
	ConflictingUpdateOperators               Code = 40
	CursorNotFound                           Code = 43
	LockBusy                                 Code = 46
	NamespaceExists                          Code = 48
	MaxTimeMSExpired                         Code = 50
	DollarPrefixedFieldName                  Code = 52
	NotSingleValueField                      Code = 54
	DottedFieldName                          Code = 57
	CommandNotFound                          Code = 59
	ShardKeyNotFound                         Code = 61
	WriteConcernFailed                       Code = 64
	MultipleErrorsOccurred                   Code = 65
	ImmutableField                           Code = 66
	CannotCreateIndex                        Code = 67
	ShardNotFound                            Code = 70
	InvalidOptions                           Code = 72
	InvalidNamespace                         Code = 73
	NoProgressMade                           Code = 82
	IndexOptionsConflict                     Code = 85
	IndexKeySpecsConflict                    Code = 86
	CannotSplit                              Code = 87
	NetworkTimeout                           Code = 89
	ShutdownInProgress                       Code = 91
	OperationFailed                          Code = 96
	WriteConflict                            Code = 112
	CommandNotSupported                      Code = 115
	ConflictingOperationInProgress           Code = 117
	NamespaceNotSharded                      Code = 118
	DocumentValidationFailure                Code = 121
	CommandFailed                            Code = 125
	FailedToSatisfyReadPreference            Code = 133
	ReadConcernMajorityNotAvailableYet       Code = 134
	CursorInUse                              Code = 143
	StaleEpoch                               Code = 150
	ZoneStillInUse                           Code = 163
	CommandNotSupportedOnView                Code = 166
	CommandOnShardedViewNotSupportedOnMongod Code = 169
	QueryPlanKilled                          Code = 175
	ZoneNotFound                             Code = 177
	RangeOverlapConflict                     Code = 178
	PrimarySteppedDown                       Code = 189
	NoShardingEnabled                        Code = 193
	NetworkInterfaceExceededTimeLimit        Code = 202
	ClusterTimeFailsRateLimiter              Code = 205
	InvalidUUID                              Code = 207
	DatabaseDropPending                      Code = 215
	IncompleteTransactionHistory             Code = 217
	IllegalOpMsgFlag                         Code = 223
	TransactionTooOld                        Code = 225
	TooManyDocumentSequences                 Code = 233
	RetryChangeStream                        Code = 234
	CursorKilled                             Code = 237
	NotImplemented                           Code = 238
	SnapshotTooOld                           Code = 239
	SnapshotUnavailable                      Code = 246
	StaleDbVersion                           Code = 249
	StaleChunkHistory                        Code = 250
	NoSuchTransaction                        Code = 251
	TransactionCommitted                     Code = 256
	InvalidResumeToken                       Code = 260
	TooManyLogicalSessions                   Code = 261
	ExceededTimeLimit                        Code = 262
	OperationNotSupportedInTransaction       Code = 263
	PreparedTransactionInProgress            Code = 267
	MigrationConflict                        Code = 272
	ClientDisconnect                         Code = 279
	ChangeStreamFatalError                   Code = 280
	WouldChangeOwningShard                   Code = 283
	ChangeStreamHistoryLost                  Code = 286
	ChecksumMismatch                         Code = 288
	TransactionExceededLifetimeLimitSeconds  Code = 290
	ShardInvalidatedForTargeting             Code = 304
	ConnectionPoolExpired                    Code = 317
	MovePrimaryInProgress                    Code = 319
	APIVersionError                          Code = 322
	APIStrictError                           Code = 323
	ReshardCollectionInProgress              Code = 338
	NoSuchReshardCollection                  Code = 339
	ReshardCollectionCommitted               Code = 340
	ReshardCollectionAborted                 Code = 341
	ReshardingCriticalSectionTimeout         Code = 342
	ShardCannotRefreshDueToLocksHeld         Code = 343
	APIMismatchError                         Code = 347
	UnsupportedOpQueryCommand                Code = 352
	LoadBalancerSupportMismatch              Code = 354
	CollectionUUIDMismatch                   Code = 361
	CannotDropShardKeyIndex                  Code = 370
	UserWritesBlocked                        Code = 371
	RequestAlreadyFulfilled                  Code = 380
	CollectionIsEmptyLocally                 Code = 383
	SocketException                          Code = 9001
	NotWritablePrimary                       Code = 10107
	BSONObjectTooLarge                       Code = 10334
	DuplicateKey                             Code = 11000
	InterruptedAtShutdown                    Code = 11600
	Interrupted                              Code = 11601
	InterruptedDueToReplStateChange          Code = 11602
	DatabaseDifferCase                       Code = 13297
	StaleConfig                              Code = 13388
	NotPrimaryNoSecondaryOk                  Code = 13435
	NotPrimaryOrSecondary                    Code = 13436
	KeyTooLong                               Code = 17280
	ClientMarkedKilled                       Code = 46841
	NotARetryableWriteCommand                Code = 50768
)

// name returns the codeName of a named code, or "".
func (c Code) name() string {
	switch c {
	case InternalError:
		return "InternalError"
	case BadValue:
		return "BadValue"
	case NoSuchKey:
		return "NoSuchKey"
	case HostUnreachable:
		return "HostUnreachable"
	case HostNotFound:
		return "HostNotFound"
	case FailedToParse:
		return "FailedToParse"
	case UserNotFound:
		return "UserNotFound"
	case UnsupportedFormat:
		return "UnsupportedFormat"
	case Unauthorized:
		return "Unauthorized"
	case TypeMismatch:
		return "TypeMismatch"
	case Overflow:
		return "Overflow"
	case InvalidLength:
		return "InvalidLength"
	case ProtocolError:
		return "ProtocolError"
	case AuthenticationFailed:
		return "AuthenticationFailed"
	case IllegalOperation:
		return "IllegalOperation"
	case InvalidBSON:
		return "InvalidBSON"
	case AlreadyInitialized:
		return "AlreadyInitialized"
	case LockTimeout:
		return "LockTimeout"
	case NamespaceNotFound:
		return "NamespaceNotFound"
	case IndexNotFound:
		return "IndexNotFound"
	case ConflictingUpdateOperators:
		return "ConflictingUpdateOperators"
	case CursorNotFound:
		return "CursorNotFound"
	case LockBusy:
		return "LockBusy"
	case NamespaceExists:
		return "NamespaceExists"
	case MaxTimeMSExpired:
		return "MaxTimeMSExpired"
	case DollarPrefixedFieldName:
		return "DollarPrefixedFieldName"
	case NotSingleValueField:
		return "NotSingleValueField"
	case DottedFieldName:
		return "DottedFieldName"
	case CommandNotFound:
		return "CommandNotFound"
	case ShardKeyNotFound:
		return "ShardKeyNotFound"
	case WriteConcernFailed:
		return "WriteConcernFailed"
	case MultipleErrorsOccurred:
		return "MultipleErrorsOccurred"
	case ImmutableField:
		return "ImmutableField"
	case CannotCreateIndex:
		return "CannotCreateIndex"
	case ShardNotFound:
		return "ShardNotFound"
	case InvalidOptions:
		return "InvalidOptions"
	case InvalidNamespace:
		return "InvalidNamespace"
	case NoProgressMade:
		return "NoProgressMade"
	case IndexOptionsConflict:
		return "IndexOptionsConflict"
	case IndexKeySpecsConflict:
		return "IndexKeySpecsConflict"
	case CannotSplit:
		return "CannotSplit"
	case NetworkTimeout:
		return "NetworkTimeout"
	case ShutdownInProgress:
		return "ShutdownInProgress"
	case OperationFailed:
		return "OperationFailed"
	case WriteConflict:
		return "WriteConflict"
	case CommandNotSupported:
		return "CommandNotSupported"
	case ConflictingOperationInProgress:
		return "ConflictingOperationInProgress"
	case NamespaceNotSharded:
		return "NamespaceNotSharded"
	case DocumentValidationFailure:
		return "DocumentValidationFailure"
	case CommandFailed:
		return "CommandFailed"
	case FailedToSatisfyReadPreference:
		return "FailedToSatisfyReadPreference"
	case ReadConcernMajorityNotAvailableYet:
		return "ReadConcernMajorityNotAvailableYet"
	case CursorInUse:
		return "CursorInUse"
	case StaleEpoch:
		return "StaleEpoch"
	case ZoneStillInUse:
		return "ZoneStillInUse"
	case CommandNotSupportedOnView:
		return "CommandNotSupportedOnView"
	case CommandOnShardedViewNotSupportedOnMongod:
		return "CommandOnShardedViewNotSupportedOnMongod"
	case QueryPlanKilled:
		return "QueryPlanKilled"
	case ZoneNotFound:
		return "ZoneNotFound"
	case RangeOverlapConflict:
		return "RangeOverlapConflict"
	case PrimarySteppedDown:
		return "PrimarySteppedDown"
	case NoShardingEnabled:
		return "NoShardingEnabled"
	case NetworkInterfaceExceededTimeLimit:
		return "NetworkInterfaceExceededTimeLimit"
	case ClusterTimeFailsRateLimiter:
		return "ClusterTimeFailsRateLimiter"
	case InvalidUUID:
		return "InvalidUUID"
	case DatabaseDropPending:
		return "DatabaseDropPending"
	case IncompleteTransactionHistory:
		return "IncompleteTransactionHistory"
	case IllegalOpMsgFlag:
		return "IllegalOpMsgFlag"
	case TransactionTooOld:
		return "TransactionTooOld"
	case TooManyDocumentSequences:
		return "TooManyDocumentSequences"
	case RetryChangeStream:
		return "RetryChangeStream"
	case CursorKilled:
		return "CursorKilled"
	case NotImplemented:
		return "NotImplemented"
	case SnapshotTooOld:
		return "SnapshotTooOld"
	case SnapshotUnavailable:
		return "SnapshotUnavailable"
	case StaleDbVersion:
		return "StaleDbVersion"
	case StaleChunkHistory:
		return "StaleChunkHistory"
	case NoSuchTransaction:
		return "NoSuchTransaction"
	case TransactionCommitted:
		return "TransactionCommitted"
	case InvalidResumeToken:
		return "InvalidResumeToken"
	case TooManyLogicalSessions:
		return "TooManyLogicalSessions"
	case ExceededTimeLimit:
		return "ExceededTimeLimit"
	case OperationNotSupportedInTransaction:
		return "OperationNotSupportedInTransaction"
	case PreparedTransactionInProgress:
		return "PreparedTransactionInProgress"
	case MigrationConflict:
		return "MigrationConflict"
	case ClientDisconnect:
		return "ClientDisconnect"
	case ChangeStreamFatalError:
		return "ChangeStreamFatalError"
	case WouldChangeOwningShard:
		return "WouldChangeOwningShard"
	case ChangeStreamHistoryLost:
		return "ChangeStreamHistoryLost"
	case ChecksumMismatch:
		return "ChecksumMismatch"
	case TransactionExceededLifetimeLimitSeconds:
		return "TransactionExceededLifetimeLimitSeconds"
	case ShardInvalidatedForTargeting:
		return "ShardInvalidatedForTargeting"
	case ConnectionPoolExpired:
		return "ConnectionPoolExpired"
	case MovePrimaryInProgress:
		return "MovePrimaryInProgress"
	case APIVersionError:
		return "APIVersionError"
	case APIStrictError:
		return "APIStrictError"
	case ReshardCollectionInProgress:
		return "ReshardCollectionInProgress"
	case NoSuchReshardCollection:
		return "NoSuchReshardCollection"
	case ReshardCollectionCommitted:
		return "ReshardCollectionCommitted"
	case ReshardCollectionAborted:
		return "ReshardCollectionAborted"
	case ReshardingCriticalSectionTimeout:
		return "ReshardingCriticalSectionTimeout"
	case ShardCannotRefreshDueToLocksHeld:
		return "ShardCannotRefreshDueToLocksHeld"
	case APIMismatchError:
		return "APIMismatchError"
	case UnsupportedOpQueryCommand:
		return "UnsupportedOpQueryCommand"
	case LoadBalancerSupportMismatch:
		return "LoadBalancerSupportMismatch"
	case CollectionUUIDMismatch:
		return "CollectionUUIDMismatch"
	case CannotDropShardKeyIndex:
		return "CannotDropShardKeyIndex"
	case UserWritesBlocked:
		return "UserWritesBlocked"
	case RequestAlreadyFulfilled:
		return "RequestAlreadyFulfilled"
	case CollectionIsEmptyLocally:
		return "CollectionIsEmptyLocally"
	case SocketException:
		return "SocketException"
	case NotWritablePrimary:
		return "NotWritablePrimary"
	case BSONObjectTooLarge:
		return "BSONObjectTooLarge"
	case DuplicateKey:
		return "DuplicateKey"
	case InterruptedAtShutdown:
		return "InterruptedAtShutdown"
	case Interrupted:
		return "Interrupted"
	case InterruptedDueToReplStateChange:
		return "InterruptedDueToReplStateChange"
	case DatabaseDifferCase:
		return "DatabaseDifferCase"
	case StaleConfig:
		return "StaleConfig"
	case NotPrimaryNoSecondaryOk:
		return "NotPrimaryNoSecondaryOk"
	case NotPrimaryOrSecondary:
		return "NotPrimaryOrSecondary"
	case KeyTooLong:
		return "OBSOLETE_KeyTooLong"
	case ClientMarkedKilled:
		return "ClientMarkedKilled"
	case NotARetryableWriteCommand:
		return "NotARetryableWriteCommand"
	default:
		return c.shardName()
	}
}
